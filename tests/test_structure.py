"""The tree as a whole: nothing dead, no circles, sizes, pure cores, tests that keep up with code.

Lists of today's exceptions may only become shorter: an entry that no longer holds fails too.
"""

from __future__ import annotations

import functools
import warnings

import pytest

from tests import structure_rules, tidy_rules
from tests.tidy_rules import ROOT, Source, parse

UNUSED = {
    # Faults that tests ask for, in parts that tests use instead of the real thing.
    "chaos/toxiproxy.py": {"received_bytes"},
    "metadata/embedded_server.py": {"expire_session"},
    "metadata/memory.py": {
        "end_lease", "force_version", "lose_reply", "lose_request", "suspend",
    },
    "src/octavo/runtime/clock.py": {"ManualClock"},
    # What kazoo calls of a request.
    "metadata/kazoo_reads.py": {"deserialize", "serialize"},
    # What tools stand on, with its tests (M-7).
    "metadata/ledgers.py": {"walk_records"},
    # Called by Spark.
    "spark/source.py": {"streamWriter"},
    # What gRPC calls.
    "proto/tracing.py": {"intercept_unary_unary"},
}  # fmt: skip
CIRCLES: list[list[str]] = []
LARGE_FILES: set[str] = set()
LARGE_CLASSES: set[str] = set()
MANY_POSITIONAL = {
    "bookie/identity.py:__init__",
    "bookie/journal/segment.py:encode_batch",
    "client/ledger/quorum.py:refused",
    "client/messaging/partitioner/__init__.py:checked_choice",
    "client/messaging/producing/intake.py:send",
    "client/messaging/producing/traced_intake.py:send",
    "client/messaging/reading/offsets.py:_ask",
    "client/messaging/reading/offsets.py:_round",
    "client/messaging/records.py:make_records",
    "metadata/embedded_proof.py:node_crc",
    "client/exports/layout.py:data_file",
    "src/octavo/supervisor/layout.py:_child",
}
ENSURED = {
    "bookie/process.py": 1,
    "client/messaging/producing/produce_link.py": 3,
    "client/messaging/sync/loop_thread.py": 2,
    "serving/partition/driver.py": 2,
    "serving/streams.py": 2,
    "client/exports/run.py": 1,
}
"""Tasks that one function makes, waits for and ends."""
CORES = (
    "bookie/journal/actions.py",
    "bookie/journal/core.py",
    "bookie/journal/item.py",
    "bookie/journal/options.py",
    "bookie/journal/queue.py",
    "bookie/journal/replay.py",
    "bookie/journal/segment.py",
    "bookie/reclaim/collection_actions.py",
    "bookie/reclaim/collection_core.py",
    "bookie/reclaim/compaction_actions.py",
    "bookie/reclaim/compaction_core.py",
    "bookie/scrub/quarantine_core.py",
    "bookie/scrub/scrub_actions.py",
    "bookie/scrub/scrub_core.py",
    "client/autorecovery/audit_core.py",
    "client/autorecovery/slot_core.py",
    "client/exports/history.py",
    "client/autorecovery/slots.py",
    "client/ledger/greeting.py",
    "client/ledger/quorum.py",
    "client/ledger/quorum_actions.py",
    "client/ledger/quorum_slots.py",
    "client/ledger/recovery.py",
    "client/ledger/tally.py",
    "client/messaging/cluster/search_pauses.py",
    "client/messaging/cluster/topic_lives.py",
    "client/messaging/group_admin/lag.py",
    "client/messaging/group_admin/resets.py",
    "client/messaging/group_admin/values.py",
    "client/messaging/group_admin/wire.py",
    "client/messaging/membership/heartbeats.py",
    "client/messaging/membership/member_core.py",
    "client/messaging/membership/offset_commits.py",
    "client/messaging/membership/reconciliation.py",
    "client/messaging/membership/values.py",
    "client/messaging/producing/actions.py",
    "client/messaging/producing/attempts.py",
    "client/messaging/producing/in_flight.py",
    "client/messaging/producing/recent_sends.py",
    "client/messaging/producing/sender_core.py",
    "client/messaging/producing/stall_watch.py",
    "client/messaging/reading/buffers.py",
    "client/messaging/reading/deserializers.py",
    "client/messaging/reading/handout.py",
    "client/messaging/reading/limits.py",
    "client/messaging/reading/positions.py",
    "client/messaging/reading/reading_core.py",
    "client/messaging/reading/reading_errors.py",
    "client/messaging/reading/readings.py",
    "client/messaging/reading/requests.py",
    "client/messaging/reading/retries.py",
    "client/segments/index.py",
    "client/segments/search.py",
    "metadata/embedded_tree.py",
    "metadata/memory_tree.py",
    "proto/batch.py",
    "proto/batch_body.py",
    "proto/bookie_wire.py",
    "proto/compacted.py",
    "proto/entry.py",
    "proto/group_records.py",
    "proto/lag.py",
    "proto/offset_map.py",
    "proto/restored.py",
    "serving/compaction/cleaning.py",
    "serving/compaction/lists.py",
    "serving/compaction/marks.py",
    "serving/compaction/plan.py",
    "serving/group_lag/core.py",
    "serving/group_lag/rows.py",
    "serving/groups/append_queue.py",
    "serving/groups/assignors.py",
    "serving/groups/core.py",
    "serving/groups/deadlines.py",
    "serving/groups/descriptions.py",
    "serving/groups/fencing.py",
    "serving/groups/group_table.py",
    "serving/groups/held.py",
    "serving/groups/member.py",
    "serving/groups/offsets.py",
    "serving/groups/partition_core.py",
    "serving/groups/request_checks.py",
    "serving/groups/state.py",
    "serving/groups/topics.py",
    "serving/groups/values.py",
    "serving/liveness/suspicion.py",
    "serving/partition/actions.py",
    "serving/partition/changes.py",
    "serving/partition/core.py",
    "serving/partition/dedup.py",
    "serving/partition/intake.py",
    "serving/partition/limits.py",
    "serving/partition/log.py",
    "serving/partition/open_segment.py",
    "serving/partition/producers.py",
    "serving/partition/rolls.py",
    "serving/partition/snapshots.py",
    "serving/partition/traffic.py",
    "serving/partition/world.py",
    "serving/partition/writer_seat.py",
    "serving/quotas/buckets.py",
    "serving/quotas/clients.py",
    "serving/shedding/board.py",
    "serving/shedding/core.py",
    "serving/shedding/meter.py",
    "spark/admission.py",
    "spark/positions.py",
    "spark/publication.py",
    "spark/stream_core.py",
    "src/octavo/cli/sizing.py",
    "src/octavo/cli/sizing_figures.py",
)
"""Decide without I/O, clock or thread."""
TESTS_TO_SOURCE_MIN = 0.8
TESTS_TO_SOURCE_BY_ROOM = {
    "bookie": 0.83,
    "client/ledger": 0.85,
    "client/messaging": 0.67,
    "client/segments": 1.8,
    "metadata": 0.65,
    "serving": 0.74,
    "spark": 1.04,
    "src/octavo/cli": 0.5,
    "src/octavo/supervisor": 0.31,
}
"""Lines of tests for a line of the library; may only rise."""


@functools.cache
def sources() -> list[Source]:
    return tidy_rules.our_sources()


def test_nothing_is_declared_that_nobody_uses() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "Makefile")]
    dead = structure_rules.dead_declarations(sources(), texts)
    allowed = {f"{path}:{name}" for path, names in UNUSED.items() for name in names}
    found = {f"{path}:{name}" for path, _, name in (one.split(":") for one in dead)}
    names = {one.replace(" ", "") for one in found}
    assert names == allowed, f"dead: {names - allowed}; used now: {allowed - names}"


def test_no_circles_types_included() -> None:
    assert structure_rules.circles(sources()) == CIRCLES


@pytest.mark.filterwarnings("default:split them before they are full:UserWarning")
def test_file_sizes() -> None:
    large = structure_rules.large_files(sources())
    nearly = structure_rules.large_files(sources(), structure_rules.FILE_LINES_NEARLY)
    named = ", ".join(f"{path} {nearly[path]}" for path in sorted(nearly.keys() - large.keys()))
    if named:
        warnings.warn(f"split them before they are full: {named}", stacklevel=1)
    assert large.keys() == LARGE_FILES, "split it by noun, or take it off the list"


def test_class_sizes() -> None:
    large = structure_rules.large_classes(sources(), ("serving/", "client/"))
    assert large.keys() == LARGE_CLASSES, "give it parts, or take it off the list"


def test_arguments_by_place() -> None:
    many = structure_rules.many_positional(sources())
    assert many.keys() == MANY_POSITIONAL, "make them keyword-only, or take it off the list"


def test_tasks_have_owners() -> None:
    counts = {s.path: n for s in sources() if (n := structure_rules.tasks_without_owner(s))}
    assert counts == ENSURED, "use runtime.tasks.TaskOwner.spawn, or take it off the list"


def test_cores_are_pure() -> None:
    by_path = {source.path: source for source in sources()}
    found = [line for core in CORES for line in structure_rules.impure_imports(by_path[core])]
    assert not found, "\n".join(found)


def test_tests_keep_up_with_the_code() -> None:
    library, tests = structure_rules.lines_by_room(sources())
    ratio = tests.total() / library.total()
    assert ratio >= TESTS_TO_SOURCE_MIN, f"{ratio:.3f}: a promise without a test?"
    thin = {
        room: f"{found:.3f}, not {least}"
        for room, least in TESTS_TO_SOURCE_BY_ROOM.items()
        if (found := tests[room] / library[room]) < least
    }
    assert not thin, f"a promise without a test? {thin}"
    assert TESTS_TO_SOURCE_BY_ROOM.keys() == set(structure_rules.ROOM_OF_WORD.values())


# --- the rules find what they are for ----------------------------------------------------------


def test_dead_declarations_are_found() -> None:
    tree = [
        parse("bookie/a.py", "LOST = 1\nX: int = 2\ndef used(): pass\ndef dead(): return X\n"),
        parse("bookie/b.py", "class Gone:\n    def on_thing(self): used()\n"),
        parse("tests/test_a.py", "dead()\nGone()\nLOST\n"),
    ]
    assert structure_rules.dead_declarations(tree, []) == [
        "bookie/a.py:4: dead",
        "bookie/a.py:1: LOST",
        "bookie/b.py:1: Gone",
    ]
    assert structure_rules.dead_declarations(tree, ["dead Gone LOST"]) == []


def test_circles_of_types_are_found() -> None:
    pair = [
        parse("bookie/a.py", "from octavo.bookie import b\n"),
        parse("bookie/b.py", "if TYPE_CHECKING:\n    from octavo.bookie import a\n"),
        parse("bookie/c.py", "def f():\n    from octavo.bookie import a\n"),
    ]
    assert structure_rules.circles(pair) == [["octavo.bookie.a", "octavo.bookie.b"]]


def test_impure_cores_are_found() -> None:
    core = parse("bookie/core.py", "import time\nfrom asyncio import sleep\nimport math\n")
    assert structure_rules.impure_imports(core) == [
        "bookie/core.py:1: time",
        "bookie/core.py:2: asyncio",
    ]


def test_large_classes_are_found() -> None:
    text = "class A:\n" + "".join(f"    def m{number}(self): pass\n" for number in range(26))
    tree = [parse("serving/a.py", text), parse("bookie/a.py", text)]
    assert structure_rules.large_classes(tree, ("serving/",)) == {"serving/a.py:A": 26}
    files = [parse("serving/a.py", "x = 1\n" * 501), parse("serving/b.py", "x = 1\n" * 460)]
    assert structure_rules.large_files(files) == {"serving/a.py": 501}
    nearly = structure_rules.large_files(files, structure_rules.FILE_LINES_NEARLY)
    assert nearly == {"serving/a.py": 501, "serving/b.py": 460}


def test_arguments_by_place_and_tasks_without_owner_are_found() -> None:
    text = "def f(self, a, b, c, d, e, f, *, g): asyncio.ensure_future(x())\n"
    assert structure_rules.many_positional([parse("bookie/a.py", text)]) == {"bookie/a.py:f": 6}
    assert structure_rules.many_positional([parse("src/octavo/cli/a.py", text)]) == {}
    assert structure_rules.tasks_without_owner(parse("bookie/a.py", text)) == 1
    assert structure_rules.tasks_without_owner(parse("tests/a.py", text)) == 0


def test_lines_are_counted_by_room() -> None:
    tree = [
        parse("serving/a.py", "x = 1\ny = 2\n"),
        parse("client/ledger/a.py", "x = 1\n" * 3),
        parse("src/octavo/cli/a.py", "x = 1\n"),
        parse("src/octavo/errors.py", "x = 1\n"),
        parse("tests/unit/test_broker_a.py", "x = 1\n" * 5),
        parse("tests/property/test_quorum_core.py", "x = 1\n" * 7),
        parse("tests/unit/test_errors.py", "x = 1\n" * 2),
        parse("tools/a.py", "x = 1\n" * 9),
    ]
    library, tests = structure_rules.lines_by_room(tree)
    assert library == {"serving": 2, "client/ledger": 3, "src/octavo/cli": 1, "": 1}
    assert tests == {"serving": 5, "client/ledger": 7, "": 2}
