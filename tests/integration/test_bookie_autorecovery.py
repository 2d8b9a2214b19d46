"""Copies heal by themselves in a real cluster: a bookie is lost, another was away, one retires."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from octavo.cli.app import app
from octavo.client.messaging import Client
from octavo.metadata.ledger_record import LedgerState
from octavo.proto.bookie_pb2 import InfoReply, InfoRequest
from octavo.proto.bookie_pb2_grpc import BookieControlStub
from octavo.proto.endpoints import open_blocking_channel
from octavo.testing import LocalCluster
from tests.heal_check import Seen, look_now

pytestmark = pytest.mark.process

QUICK = {
    "metadata_session_timeout_s": 3,
    "lost_delay_s": 2,
    "fleet_poll_s": 0.3,
    "open_fragment_grace_s": 1,
    "audit_recheck_s": 1,
}
HEALED_WITHIN_S = 60.0


@contextmanager
def load(cluster: LocalCluster) -> Generator[list[bytes]]:
    """A producer that sends all the time and must not see an error; the values it was told of."""
    stop = threading.Event()
    sent: list[bytes] = []
    failed: list[BaseException] = []

    def send() -> None:
        try:
            with Client(cluster.bootstrap_servers) as client, client.producer() as producer:
                number = 0
                while not stop.is_set():
                    value = b"%06d" % number
                    producer.send("orders", value, key=value)
                    sent.append(value)
                    number += 1
        except BaseException as error:  # noqa: BLE001 - told to the test below
            failed.append(error)

    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic("orders", partitions=2, config={"segment.ms": "4000"})
    thread = threading.Thread(target=send, name="load")
    thread.start()
    try:
        _until(lambda: len(sent) > 200 or bool(failed), "the load to begin")
        yield sent
    finally:
        stop.set()
        thread.join(60)
    assert not failed, failed


def _until(condition: Callable[[], bool], what: str, timeout_s: float = HEALED_WITHIN_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        threading.Event().wait(0.2)


@contextmanager
def steps_of(cluster: LocalCluster) -> Generator[list[str]]:
    """What the health of the cluster says of copies, whenever it says something else."""
    stop = threading.Event()
    steps: list[str] = []

    def watch() -> None:
        with Client(cluster.bootstrap_servers) as client:
            while not stop.wait(0.01):
                found = client.admin.cluster_health()
                if found.short_segments:
                    said = "away"
                elif found.marked_ledgers:
                    said = "being made"
                else:
                    said = "not known" if found.returned_bookies else "whole"
                if not steps or steps[-1] != said:
                    steps.append(said)

    thread = threading.Thread(target=watch, name="health")
    thread.start()
    try:
        yield steps
    finally:
        stop.set()
        thread.join(60)


def _until_whole(cluster: LocalCluster, without: str = "") -> Seen:
    """Every entry on every member of its record, no mark left, and `without` named nowhere."""
    seen: list[Seen] = []

    def whole() -> bool:
        seen.append(look_now(cluster.metadata))
        now = seen[-1]
        return not now.short and not now.marks and without not in now.named

    try:
        _until(whole, "every ledger to have every copy")
    except AssertionError as error:
        error.add_note(f"short: {seen[-1].short}, marks: {seen[-1].marks}, {seen[-1].named}")
        for name in cluster.processes:
            error.add_note(f"{name}: {cluster.log(name)[-3000:]}")
        raise
    return seen[-1]


def _info(cluster: LocalCluster, name: str) -> InfoReply:
    with open_blocking_channel(cluster.process(name).health_address) as channel:
        return BookieControlStub(channel).Info(InfoRequest(), timeout=10)


def _all_values(cluster: LocalCluster) -> set[bytes]:
    with Client(cluster.bootstrap_servers) as client:
        found: set[bytes] = set()
        with client.reader("orders") as reader:
            for record in reader.read_to_end():
                assert record.value is not None
                found.add(record.value)
        return found


def _octavo(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_bookie_lost_for_good_is_replaced_and_producers_see_no_error() -> None:
    """A-1, A-5, INV-6: every ledger is back at Qw on others; G-4: when it comes back after all, it
    gives up what it has, and nothing else."""
    settings = {**QUICK, "gc_interval_s": 1, "gc_surplus_interval_s": 1, "gc_surplus_quiet_s": 1}
    with LocalCluster(bookies=4, bookie_settings=settings) as cluster:
        with load(cluster) as sent:
            cluster.kill("bookie-2")
            _until_whole(cluster, without="bookie-2")
            known = len(sent)
            _until(lambda: len(sent) > known + 100, "the load to go on")
            cluster.restart("bookie-2")
            _until(lambda: _info(cluster, "bookie-2").surplus_deleted > 0, "surplus copies to go")
        _until_whole(cluster)
        assert set(sent) <= _all_values(cluster)
        gauges = [_info(cluster, f"bookie-{number}") for number in range(1, 5)]
        assert sum(gauge.slots_replaced for gauge in gauges) > 0
        assert not any(gauge.entries_unreadable or gauge.collection_alarm for gauge in gauges)


def test_a_bookie_that_was_away_gets_what_was_written_meanwhile() -> None:
    """A-2: three bookies, so that writers go on with two copies; also in open ledgers."""
    with LocalCluster(bookies=3, bookie_settings={**QUICK, "lost_delay_s": 600}) as cluster:
        with load(cluster) as sent:
            cluster.kill("bookie-2")
            before = len(sent)
            _until(lambda: len(sent) > before + 300, "records without the bookie")
        with steps_of(cluster) as steps:
            _until(lambda: bool(steps), "a first look at the health")
            cluster.restart("bookie-2")
            seen = _until_whole(cluster)
            _until(lambda: steps[-1] == "whole", "the health to say so")
        # Not known, then being made, then whole: never whole before somebody has looked (7.3).
        assert steps[0] == "away", steps
        assert "being made" in steps, steps
        assert steps.count("whole") == 1, steps
        assert all(record.quorum.write == 3 for record in seen.records)
        assert "slot-repaired" in "".join(cluster.log(f"bookie-{i}") for i in (1, 2, 3))


def test_what_was_written_while_bookies_were_too_few_gets_its_third_copy() -> None:
    """ADR 47: a ledger opened degraded is closed when the third bookie is back, and grows."""
    with LocalCluster(bookies=3, bookie_settings={**QUICK, "lost_delay_s": 600}) as cluster:
        with Client(cluster.bootstrap_servers) as client:
            client.admin.create_topic("orders", partitions=2)
        cluster.kill("bookie-2")
        _until(lambda: len(look_now(cluster.metadata).fleet.registered) == 2, "it to be away")
        cluster.restart("broker-1")  # which opens ledgers of its own
        values = {b"%03d" % number for number in range(50)}
        with Client(cluster.bootstrap_servers) as client, client.producer() as producer:
            for value in sorted(values):
                producer.send("orders", value, key=value)
        assert any(record.degraded for record in look_now(cluster.metadata).records)
        cluster.restart("bookie-2")
        with Client(cluster.bootstrap_servers) as client, client.producer() as producer:
            for number in range(4):  # who writes goes on in a ledger with three copies
                producer.send("orders", b"later", key=b"%d" % number)
        seen = _until_whole(cluster)
        assert not any(record.degraded for record in seen.records)
        assert {record.quorum.write for record in seen.records} == {3}
        assert {*values, b"later"} <= _all_values(cluster)


def _close_open_ledgers(cluster: LocalCluster, *words: str) -> None:
    records = look_now(cluster.metadata).records
    live = [record.ledger_id for record in records if record.state is LedgerState.OPEN]
    for ledger_id in live:  # one that is full may be closed meanwhile
        code, text = _octavo("ledger", "recover", str(ledger_id), "--yes", *words)
        assert (code, f"ledger {ledger_id} " in text) == (0, True), text
    assert live


def test_a_bookie_is_decommissioned_under_load() -> None:
    """7.4, B-29: its copies move, then the cluster forgets it; too few others is refused."""
    with LocalCluster(bookies=4, bookie_settings=QUICK) as cluster:
        words = ("--metadata", cluster.metadata)
        with load(cluster) as sent:
            code, text = _octavo("bookies", "decommission", "bookie-3", *words)
            assert code == 0, text
            known = len(sent)
            _until(lambda: len(sent) > known + 100, "the load to go on")
            _close_open_ledgers(cluster, *words)
            _until(lambda: len(sent) > known + 200, "the load to go on in other ledgers")
        seen = _until_whole(cluster, without="bookie-3")
        assert "bookie-3" not in seen.fleet.incarnations
        cluster.terminate("bookie-3")
        code, text = _octavo("ledger", "verify", "--read", *words)
        assert (code, "0 lack copies, 0 not known" in text) == (0, True), text
        assert set(sent) <= _all_values(cluster)
        from octavo.runtime.errors import InvalidRequest, NotEnoughBookies

        with pytest.raises(NotEnoughBookies, match="bookie-1 was left alone"):
            _octavo("bookies", "decommission", "bookie-1", *words)
        with pytest.raises(InvalidRequest, match="no bookie called"):
            _octavo("bookies", "decommission", "bookie-9", *words)
        code, text = _octavo("bookies", "scrub", "bookie-1", "--now", "-o", "json", *words)
        (row,) = json.loads(text)
        assert (code, row["bookie"], row["damaged"], row["quarantined"]) == (0, "bookie-1", 0, 0)
        _until(lambda: _info(cluster, "bookie-1").scrub_passes > 0, "bookie-1 to read everything")
        _octavo("bookies", "readonly", "bookie-1", *words)
        _until(
            lambda: "read-only" in _octavo("bookies", "list", *words)[1], "bookie-1 to be read-only"
        )
        _octavo("bookies", "writable", "bookie-1", *words)
        _until(
            lambda: "read-only" not in _octavo("bookies", "list", *words)[1], "it to be writable"
        )
