# One entry for everything; .ci/run calls the same targets. `make setup` is implied by all of them.
SHELL := /bin/bash
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.octavo-ready
PYTEST_ARGS ?=
WORKERS ?= 2
CASES ?= ../shared/cases
KILLS ?= 40
TERMS ?= 10
DRAINS ?= 10
FREEZES ?= 10
SEED ?= 1

# The repository root holds folders named like packages (proto, client, ...): keep it off sys.path.
export PYTHONSAFEPATH := 1

.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE "^[a-z-]+:.*\#\# " Makefile | cut -d: -f1)

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1|/' | \
	  while IFS='|' read -r name text; do printf '  make %-15s %s\n' "$$name" "$$text"; done

$(READY): pyproject.toml tools/setup.py
	@$(PYTHON) tools/setup.py

setup: $(READY) ## virtual environment, packages, Java and Toxiproxy; quick when nothing changed

demo: $(READY) ## the main job on real data, with processes killed on the way, and proven
	@PYTHONPATH=. $(PY) -m tools.demo $(ARGS)

test: $(READY) ## the whole suite, in WORKERS processes (2)
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

test-flags: $(READY) ## unit and property tests, the two longest sweeps left out, with assertions off (PYTHONOPTIMIZE=1) and in development mode (-X dev)
	HYPOTHESIS_PROFILE=brief PYTHONOPTIMIZE=1 PYTHONDEVMODE=1 $(PY) -m pytest -q -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS) \
	  -W 'ignore:assertions not in test modules:pytest.PytestConfigWarning' tests/unit tests/property \
	  --ignore tests/unit/test_bookie_disk_sweep.py --ignore tests/property/test_bookie_power_cuts.py

cases: $(READY) ## small programs that show one fault each, from CASES; ARGS names some of them
	@$(PY) tools/cases.py --folder $(CASES) $(ARGS)

soak-kills: $(READY) ## kill -9 of every process at once, ten times: every acknowledged record is where it was acknowledged; ROUNDS=n
	OCTAVO_TEST_ROUNDS=$(or $(ROUNDS),10) $(PY) -m pytest -q tests/e2e/test_kill_everything.py

soak-wire: $(READY) ## flipped bits in frames between servers: how many of a million are believed (none)
	@PYTHONPATH=. $(PY) -m tools.wire_flips --flips 1000000 $(ARGS)

soak-power-cuts: $(READY) ## kills, failed syncs and power cuts over a bookie, thousands of schedules
	@PYTHONPATH=. $(PY) -m tools.soak_power_cuts $(ARGS)

soak-metadata: $(READY) ## 2,000 flipped bits, lost sectors and cuts of the embedded metadata files: how many are believed
	@PYTHONPATH=. $(PY) -m tools.metadata_flips --flips 2000 $(ARGS)
soak-index: $(READY) ## 1,500 flipped bits in the files of a bookie's index: none believed, none a bare exception
	@PYTHONPATH=. $(PY) -m tools.index_flips $(ARGS)

soak-start: $(READY) ## a bookie with 20 GiB, a million entries and 10,000 ledgers: starts after kill -9, and all of it is there
	@PYTHONPATH=. $(PY) -m tools.soak_start $(ARGS)

storage-soak: $(READY) ## topics written and deleted, bookies killed: the space returns and nothing is lost; SEED=n
	@PYTHONPATH=. $(PY) -m tools.storage_soak --seed $(or $(SEED),1) $(ARGS)

churn-soak: $(READY) ## a day of churn in ten minutes: what lives stays the same, and so do the disks; ARGS="--minutes n", SEED=n
	@PYTHONPATH=. $(PY) -m tools.churn_soak --seed $(or $(SEED),1) $(ARGS)

soak-scrub: $(READY) ## 500 flipped bits in closed segments of one bookie, then on all; kills at each step of a repair: all found, none believed; SEED=n
	@PYTHONPATH=. $(PY) -m tools.scrub_flips --flips 500 --seed $(or $(SEED),1) $(ARGS)
	@PYTHONPATH=. $(PY) -m tools.scrub_flips --flips 500 --seed $(or $(SEED),1) --spread $(ARGS)
	@OCTAVO_TEST_STRIDE=1 $(PY) -m pytest -q tests/property/test_bookie_scrub_cuts.py

soak-expiry: $(READY) ## producers whose records expire while brokers and bookies stand still: 60 rounds, three seeds
	@PYTHONPATH=. $(PY) -m tools.soak_expiry $(ARGS)

soak-memory: $(READY) ## memory of server and client under each abuse of a connection: within its setting plus 64 MiB
	@PYTHONPATH=. $(PY) -m tools.abuse_memory $(ARGS)

soak-quota: $(READY) ## a client with a quota of 1 MB/s gets 1 MB/s within 10 % over 30 s, and loses nothing
	@PYTHONPATH=. $(PY) -m tools.quota_soak $(ARGS)

soak-recreate: $(READY) ## topics deleted and created again under live producers and readers, 40 rounds
	@PYTHONPATH=. $(PY) -m tools.soak_recreate $(ARGS)

life-soak: $(READY) ## rolls, trims, retention, compaction and kills: no retained record is missed, no trimmed one read; DURATION seconds, SEED
	@PYTHONPATH=. $(PY) -m tools.life_soak --duration $(or $(DURATION),120) --seed $(or $(SEED),1) $(ARGS)

tier-soak: $(READY) ## a topic of which bookies keep a small part, servers killed: all of it is read from 0; ARGS="--gb 5 --local-mb 200"
	@PYTHONPATH=. $(PY) -m tools.tier_soak --seed $(or $(SEED),1) $(ARGS)

groups-soak: $(READY) ## members of a group that join, leave, freeze and die under load, DURATION seconds (300), SEED n (1)
	@PYTHONPATH=. $(PY) -m tools.groups_soak --duration $(or $(DURATION),300) --seed $(or $(SEED),1) $(ARGS)

spark-soak: $(READY) ## kill -9 of drivers, workers, brokers and bookies under a streaming write of Spark: each row once, nothing left staged; KILLS, SEED
	@PYTHONPATH=. $(PY) -m tools.spark_soak --kills $(or $(KILLS),10) --seed $(or $(SEED),1) $(ARGS)

soak-export: $(READY) ## 2,000 flipped bits and 50 cuts of exported files of each format, by our reader and by Spark
	OCTAVO_TEST_FLIPS=2000 OCTAVO_TEST_CUTS=50 $(PY) -m pytest -q tests/unit/test_spark_damage.py
	@PYTHONPATH=. $(PY) -m tools.spark_flips --flips 2000 --cuts 50 $(ARGS)

lint: $(READY) ## style, layering, types, generated code
	@$(MAKE) --no-print-directory -j 2 --output-sync=target lint-types lint-rest

lint-types: $(READY) ## a part of lint: pyright
	.venv/bin/pyright

lint-rest: $(READY) ## the other part of lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	$(PY) tools/gen_proto.py --check
	PYTHONPATH=. $(PY) -m tools.gen_sync --check
	$(PY) tools/gen_reference.py --check
	PYTHONPATH=. $(PY) -m tools.gen_dashboards --check
	.venv/bin/mypy

sync: $(READY) ## write the blocking classes of the SDK from the async ones
	@PYTHONPATH=. $(PY) -m tools.gen_sync

format: $(READY) ## let ruff rewrite what it can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: $(READY) ## throughput and latency, with the machine's own limits beside them
	@PYTHONPATH=. $(PY) -m bench.bench $(ARGS)

bench-quick: $(READY) ## the same in less than a minute, one round, one line at the end
	@PYTHONPATH=. $(PY) -m bench.quick

bench-compaction: $(READY) ## 10 M records of 1 M keys compacted: records/s, memory, space, and p99 of sends meanwhile; ARGS
	@PYTHONPATH=. $(PY) -m bench.compaction $(ARGS)

bench-upkeep: $(READY) ## bench-quick with collection, compaction and scrub at work beside it with all at rest, in turn; 1 when it costs more than a tenth
	@PYTHONPATH=. $(PY) -m bench.upkeep $(ARGS)

bench-backlog: $(READY) ## p99 of one topic's tail beside a reader of another topic's backlog, in turn; 1 when it grows by more than a fifth; ARGS="--gb 10"
	@PYTHONPATH=. $(PY) -m bench.backlog $(ARGS)

bench-groups: $(READY) ## reading in a group beside reading without one, in turn, and commits; 1 when it costs more than 5 %
	@PYTHONPATH=. $(PY) -m bench.groups $(ARGS)

bench-spark-sources: $(READY) ## the same 3 M rows from Octavo, Kafka and Parquet by one Spark, in turn: rows/s, CPU; 1 when a bound is not met; ARGS
	@PYTHONPATH=. $(PY) -m bench.spark_sources $(ARGS)

bench-codecs: $(READY) ## what each codec makes of a batch of JSON, and what recompressing it costs; 1 when LZ4 saves less than two thirds
	@PYTHONPATH=. $(PY) -m bench.codecs

client-load: $(READY) ## 2,000 clients on one broker: memory of each, time to settle, CPU at rest and at work; ARGS="--clients n"
	@PYTHONPATH=. $(PY) -m tools.client_load $(ARGS)

topic-load: $(READY) ## 10,000 topics with 100,000 partitions: list, describe, start of a broker, memory; ARGS="--topics n"
	@PYTHONPATH=. $(PY) -m tools.topic_load $(ARGS)

take-over: $(READY) ## 1,000 partitions of a broker that is killed, taken by another: for how long they are away, and its CPU
	@PYTHONPATH=. $(PY) -m tools.take_over $(ARGS)

burst: $(READY) ## ten times the traffic for a minute while nobody reads, then up to a limit: nothing is lost; ARGS="--seconds 10"
	@PYTHONPATH=. $(PY) -m tools.burst $(ARGS)

group-load: $(READY) ## what groups cost their coordinator: joining, resting, hand-overs, commits, a take-over
	@PYTHONPATH=. $(PY) -m tools.group_load $(ARGS)

bench-peers: $(READY) ## Octavo beside Kafka, NATS and RabbitMQ on this machine, in turn, in one table
	@$(PY) -c 'import confluent_kafka, matplotlib, nats, pika, rstream' 2>/dev/null || \
	  $(PY) -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@PYTHONPATH=. $(PY) -m bench.compare $(ARGS)

frozen-owner: $(READY) ## freeze the owner under an open producer and reader, 20 times a minute each
	@PYTHONPATH=. $(PY) -m tools.frozen_owner $(ARGS)

failover: $(READY) ## take brokers away under load on a real ZooKeeper: KILLS (40), TERMS, DRAINS, FREEZES (10), SEED; how long who waits
	@PYTHONPATH=. $(PY) -m tools.failover --kills $(KILLS) --terms $(TERMS) --drains $(DRAINS) --freezes $(FREEZES) --seed $(SEED) $(ARGS)

proto: $(READY) ## regenerate the protobuf and gRPC code
	@$(PY) tools/gen_proto.py

reference: $(READY) ## write docs/reference/ from the code
	@$(PY) tools/gen_reference.py

dashboards: $(READY) ## write docs/monitoring/grafana/ from tools/dashboards.py
	@PYTHONPATH=. $(PY) -m tools.gen_dashboards

docs: $(READY) reference ## the SDK's reference as pages in build/docs, from its docstrings; warnings are errors
	@# pdoc looks for the names in a NamedTuple's annotations in the wrong module: not a fault of ours.
	@$(PY) -W error -W 'ignore:Error parsing type annotation ForwardRef' -m pdoc -o build/docs octavo.errors octavo.testing $(addprefix octavo.client.messaging.,\
	  sync.client sync.producer sync.consumer sync.reader sync.admin api.client api.producer api.consumer api.reader api.admin \
	  api.descriptions api.group_admin group_admin.values group_admin.lag group_admin.resets sync.group_admin records tracing producing.futures producing.bulk producing.serializers partitioner)

clean: ## remove everything that was generated, the virtual environment too
	rm -rf .venv build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -rf .hypothesis .import_linter_cache .octavo-test demo-data spark-warehouse artifacts bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
