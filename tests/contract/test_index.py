"""What every index of a bookie does: RocksDB, memory, the frozen one over each (ledger §6.7)."""

from __future__ import annotations

import contextlib
import pathlib
import random
import uuid
from collections.abc import Iterator

import pytest

from octavo.bookie.journal.item import CommittedGroup, EntryHead, JournalItem
from octavo.bookie.journal.segment import (
    CONTROL,
    SORTED_BASE,
    FooterBuilder,
    Position,
    Record,
    RecordType,
)
from octavo.bookie.storage.applier import IndexApplier
from octavo.bookie.storage.index import MAX_ENTRY_ID, Index, LedgerState, Location, Suspect
from octavo.bookie.storage.index_jobs import Suspicions, finish
from octavo.bookie.storage.index_walk import rows_into
from octavo.bookie.storage.keyed_index import MARK_KEY, SEGMENT_KEY, KeyedIndex, entry_key
from octavo.bookie.storage.memory_index import MemoryEngine
from octavo.bookie.storage.rocks_index import RocksEngine
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import HEADER
from octavo.runtime.errors import (
    InvariantViolation,
    StorageDamaged,
    StorageUnavailable,
    UnsupportedVersion,
)
from tests.bookie_rig import copy_live

BUFFER_BYTES = 1 << 20
BOUND = 1 << 40
"""More bytes than any run here."""


class Home:
    """A folder with an index of one kind, which a crash may hit."""

    def __init__(self, kind: str, folder: pathlib.Path) -> None:
        self.frozen = kind.startswith("frozen")
        self.engine = MemoryEngine() if kind.endswith("memory") else RocksEngine()
        self.folder = folder / "index"
        self.damages: list[StorageDamaged] = []
        self.opened: list[Index] = []
        if self.frozen:  # something lies below, which never answers for what is asked here
            below = self.engine.open(self.folder, BUFFER_BYTES, self.damages.append)
            fill(below, {(3, 7): Location(1, 5, 40), (1 << 40, 0): Location(1, 5, 40)})
            below.close()

    def open(self) -> Index:
        if self.frozen:
            index: Index = self.engine.open_frozen(self.folder, self.damages.append)
        else:
            index = self.engine.open(self.folder, BUFFER_BYTES, self.damages.append)
        self.opened.append(index)
        return index

    def crash(self, batches: int = 0) -> None:
        """Go on in what the process leaves when it dies now."""
        image = self.folder.with_name(f"image-{uuid.uuid4().hex}")
        if isinstance(self.engine, MemoryEngine):
            self.engine.crash(self.folder, image, batches)
        else:
            copy_live(self.folder, image)
        self.folder = image

    def close(self) -> None:
        for index in self.opened:
            with contextlib.suppress(StorageUnavailable):  # closed by its test
                index.close()


def home_of(request: pytest.FixtureRequest, folder: pathlib.Path) -> Iterator[Home]:
    home = Home(request.param, folder)
    yield home
    home.close()


@pytest.fixture(params=["rocks", "memory", "frozen over rocks", "frozen over memory"])
def anyone(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Home]:
    """Whatever answers as an index."""
    yield from home_of(request, tmp_path)


@pytest.fixture(params=["rocks", "memory"])
def lasting(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Home]:
    """Indexes that survive what they were flushed for."""
    yield from home_of(request, tmp_path)


def fill(index: Index, entries: dict[tuple[int, int], Location], mark: int = 0) -> None:
    """Apply entries as a replay does."""
    applier = IndexApplier(index, 0)
    for (ledger_id, entry_id), (segment, offset, length) in entries.items():
        data = HEADER.pack(ledger_id, entry_id, entry_id - 1, 0, 0).ljust(length, b"\0")
        assert len(data) >= length
        applier.add_record(segment, Record(RecordType.ENTRY, data, offset))
    applier.commit(max(applier.mark, Position(1, mark)))


def place(number: int, nbytes: int = 100) -> Location:
    return Location(2, 1000 + number * nbytes, nbytes)


# --- answers -----------------------------------------------------------------------------------


def test_an_index_that_holds_nothing_of_it_says_so(anyone: Home) -> None:
    index = anyone.open()
    assert index.mark(5) is None
    assert index.identity() is None
    assert index.locate(1, 0) is None
    assert index.locate_run(1, 0, 100, BOUND) == []
    assert index.ledger(1) is None
    assert index.live_bytes(9) == 0
    assert not anyone.damages


def test_what_is_written_is_read_at_once_and_not_before(anyone: Home) -> None:
    index = anyone.open()
    applier = IndexApplier(index, 0)
    data = HEADER.pack(1, 0, -1, 0, 0) + b"bytes"
    applier.add_record(2, Record(RecordType.ENTRY, data, 900))
    applier.set_identity(b"mine")
    assert index.locate(1, 0) is None
    assert index.identity() is None
    applier.commit(Position(2, 1000))
    assert index.locate(1, 0) == Location(2, 900, len(data))
    assert index.identity() == b"mine"
    assert index.mark(0) == Position(2, 1000)
    assert index.mark(1) is None
    assert index.live_bytes(2) == len(data)


def test_a_later_place_of_an_entry_takes_over(anyone: Home) -> None:
    """A recovery add repairs an entry at a new place (B-3)."""
    index = anyone.open()
    fill(index, {(3, 6): place(6), (3, 7): place(7), (3, 8): place(8)})
    fill(index, {(3, 7): Location(4, 77, 100)})
    moved = [place(6), Location(4, 77, 100), place(8)]
    assert index.locate(3, 7) == moved[1]
    assert index.locate_run(3, 6, 10, BOUND) == moved


def test_entries_are_listed_as_runs_and_other_ledgers_are_not(anyone: Home) -> None:
    index = anyone.open()
    held = [0, 1, 2, 5, 7, 8]
    fill(index, {(4, n): place(n) for n in held} | {(5, 3): place(20)})
    assert index.entry_runs(4, 0, 100) == ([(0, 2), (5, 5), (7, 8)], 100)
    assert index.entry_runs(4, 1, 7) == ([(1, 2), (5, 5), (7, 7)], 7)
    assert index.entry_runs(4, 3, 4) == ([], 4)
    assert index.entry_runs(6, 0, 5) == ([], 5)
    assert index.entry_runs(4, MAX_ENTRY_ID - 1, MAX_ENTRY_ID) == ([], MAX_ENTRY_ID)


def test_a_listing_of_too_many_runs_says_how_far_it_looked(
    anyone: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.bookie.storage.keyed_index.ENTRY_RUNS_MAX", 2)
    index = anyone.open()
    fill(index, {(4, n): place(n) for n in (0, 2, 3, 6, 7)})
    assert index.entry_runs(4, 0, 100) == ([(0, 0), (2, 3)], 5)
    assert index.entry_runs(4, 6, 100) == ([(6, 7)], 100)


def test_a_run_ends_at_a_gap_at_its_count_and_behind_its_bytes(anyone: Home) -> None:
    index = anyone.open()
    fill(index, {(1, i): place(i) for i in (0, 1, 2, 3, 5, 6)})
    fill(index, {(2, 4): place(9)})
    run = [place(i) for i in range(4)]
    assert index.locate_run(1, 0, 100, BOUND) == run, "no gap is skipped"
    assert index.locate_run(1, 5, 100, BOUND) == [place(5), place(6)], "no other ledger's entry"
    assert index.locate_run(1, 4, 100, BOUND) == []
    assert index.locate_run(1, 1, 2, BOUND) == run[1:3]
    assert index.locate_run(1, 0, 1, BOUND) == run[:1]
    assert index.locate_run(1, 0, 100, 200) == run[:3], "with the one that exceeds the bytes"
    assert index.locate_run(1, 0, 100, 199) == run[:2]
    assert index.locate_run(1, 0, 100, 1) == run[:1]


def test_ids_at_the_ends_of_their_range(anyone: Home) -> None:
    index = anyone.open()
    last = MAX_ENTRY_ID
    fill(index, {(last, last - 1): place(1), (last, last): place(2), (0, 0): place(3)})
    assert index.locate(last, last) == place(2)
    assert index.locate_run(last, last, 5, BOUND) == [place(2)]
    assert index.locate_run(last, last - 1, 5, BOUND)[0] == place(1)
    assert index.locate_run(last, last + 1, 5, BOUND) == [], "whoever reads on is told the end"
    assert index.locate_run(0, 0, 5, BOUND) == [place(3)]


def test_rows_of_all_ledgers_come_in_order_from_anywhere(anyone: Home) -> None:
    index = anyone.open()
    places = {(4, 9): Location(1, 5, 40), (4, 2): Location(2, 5, 40), (6, 0): Location(1, 90, 70)}
    fill(index, places)
    rows = [(ledger, entry, place) for (ledger, entry), place in sorted(places.items())]
    mine = [row for row in index.rows_from(0, 0, 100) if row[0] in (4, 6)]
    assert mine == rows
    assert index.rows_from(4, 3, 1) == [rows[1]]
    assert list(rows_into(index, 2, lambda: None)) == [rows[0]]


def test_615_suspects_are_kept_until_they_are_taken_off(anyone: Home) -> None:
    index = anyone.open()
    one = Suspect(4, 9, Location(1, 5, 40), has_row=True)
    two = Suspect(6, 0, Location(SORTED_BASE, 1 << 31, 7), has_row=False)
    finish(Suspicions(added=[two, one], notes={b"why": b"a scrub"}), index)
    assert index.suspects(10) == [one, two]
    assert index.suspects(1) == [one]
    assert index.note(b"why") == b"a scrub"
    finish(Suspicions(added=[], removed=[one], notes={}), index)
    assert index.suspects(10) == [two]


def test_segments_come_in_the_order_of_their_numbers(anyone: Home) -> None:
    index = anyone.open()
    numbers = [300, 2, 1 << 40, 256, 255]
    for number in numbers:
        fill(index, {(number, 0): Location(number, 0, 50)}, mark=number)
    assert [n for n in index.segments() if n != 1] == sorted(numbers)
    assert [index.live_bytes(number) for number in numbers] == [50] * 5


def test_the_state_of_a_ledger_grows_with_its_records(anyone: Home) -> None:
    index = anyone.open()
    fill(index, {(5, i): place(i) for i in (0, 1, 4)})
    assert index.ledger(5) == LedgerState(False, 0, -1, 3, 4, 3, 300)
    applier = IndexApplier(index, 0)
    tag = (1 << 64) - 1
    for kind, value in (
        (RecordType.ADMIT, tag),
        (RecordType.EXPLICIT_LAC, 9),
        (RecordType.EXPLICIT_LAC, 8),
        (RecordType.FENCE, 0),
    ):
        applier.add_record(2, Record(kind, CONTROL.pack(5, value), 10))
    applier.commit(Position(2, 500))
    state = index.ledger(5)
    assert state == LedgerState(True, tag, 9, 3, 4, 3, 300)
    assert state is not None
    assert state.lac == 9


def test_b14_a_live_group_and_its_replay_give_the_same(anyone: Home) -> None:
    index = anyone.open()
    heads: list[EntryHead] = []
    entries: list[bytes] = []
    for ledger_id, entry_id in ((1, 0), (1, 1), (2, 0), (1, 2), (2, 1)):
        heads.append((ledger_id, entry_id, entry_id - 1, 0, 0))
        entries.append(HEADER.pack(*heads[-1]) + bytes(entry_id))
    item = JournalItem(
        heads, list(entries), ignore, controls=((RecordType.FENCE, 2, 0), (RecordType.ADMIT, 1, 6))
    )
    item.offset = 200
    live = IndexApplier(index, 0)
    live.add_group(CommittedGroup(4, [item], Position(4, 999)), FooterBuilder())
    live.commit(Position(4, 999))
    answers = [index.locate_run(n, 0, 9, BOUND) for n in (1, 2)], index.live_bytes(4)
    states = [index.ledger(n) for n in (1, 2)]
    offset = 200
    replayed = IndexApplier(index, 0)
    for kind, ledger_id, value in item.controls:
        data = CONTROL.pack(ledger_id, value)
        replayed.add_record(14, Record(kind, data, offset))
        offset += len(data)
    for (ledger_id, entry_id, *_), data in zip(heads, entries, strict=True):
        other = HEADER.pack(ledger_id + 10, entry_id, entry_id - 1, 0, 0) + bytes(entry_id)
        replayed.add_record(14, Record(RecordType.ENTRY, other, offset))
        offset += len(data)
    replayed.commit(Position(14, 999))
    again = [index.locate_run(n, 0, 9, BOUND) for n in (11, 12)]
    assert [[one._replace(segment=4) for one in run] for run in again] == answers[0]
    assert index.live_bytes(14) == answers[1] == sum(map(len, entries))
    controls = [(True, 0), (False, 6)]
    assert [state and (state.fenced, state.admitted_tag) for state in states] == controls[::-1]
    counted = [state and (state.last_entry, state.entries, state.lac) for state in states]
    assert counted == [(2, 3, 1), (1, 2, 0)]


def ignore(_status: Status) -> None:
    """Nobody waits for an answer here."""


def test_a_record_of_an_unknown_type_is_no_record_of_ours(anyone: Home) -> None:
    applier = IndexApplier(anyone.open(), 0)
    with pytest.raises(UnsupportedVersion, match="unknown type 77"):
        applier.add_record(1, Record(77, CONTROL.pack(1, 1), 0))


def test_b11_a_mark_never_goes_back(anyone: Home) -> None:
    applier = IndexApplier(anyone.open(), 0)
    applier.commit(Position(3, 100))
    applier.commit(Position(3, 100))
    with pytest.raises(InvariantViolation, match="go back"):
        applier.commit(Position(3, 99))


@pytest.mark.parametrize("value", [b"", b"x", bytes(17)])
def test_inv9_a_value_of_another_size_is_damage_and_reported(anyone: Home, value: bytes) -> None:
    index = anyone.open()
    assert isinstance(index, KeyedIndex)
    batch = index.new_batch()
    batch.put(entry_key(1, 0), value)
    batch.put(MARK_KEY.pack(b"m", 4), value)
    batch.put(SEGMENT_KEY.pack(b"s", 8), value)
    index.write(batch)
    for question in (
        lambda: index.locate(1, 0),
        lambda: index.locate_run(1, 0, 5, BOUND),
        lambda: index.mark(4),
        lambda: index.live_bytes(8),
    ):
        with pytest.raises(StorageDamaged, match="an index read failed"):
            question()
    assert len(anyone.damages) == 4
    assert str(anyone.folder) in anyone.damages[0].cause, "it says which index"


def test_a_closed_index_answers_nothing(anyone: Home) -> None:
    index = anyone.open()
    fill(index, {(1, 0): place(0)})
    index.close()
    for question in (
        lambda: index.locate(9, 9),
        lambda: index.locate_run(9, 9, 2, BOUND),
        lambda: index.segments(),
    ):
        with pytest.raises(StorageUnavailable):
            question()
    assert not anyone.damages, "closed is not damaged"


# --- what survives -----------------------------------------------------------------------------


def test_what_was_closed_is_there_when_it_is_opened_again(lasting: Home) -> None:
    index = lasting.open()
    fill(index, {(1, i): place(i) for i in range(50)}, mark=700)
    index.close()
    index = lasting.open()
    assert index.locate_run(1, 0, 99, BOUND) == [place(i) for i in range(50)]
    assert index.mark(0) == Position(1, 700)


def test_b10_a_crash_leaves_what_was_flushed_and_a_mark_that_covers_no_more(lasting: Home) -> None:
    index = lasting.open()
    for i in range(10):
        fill(index, {(1, i): place(i)}, mark=i)
        if i == 6:
            index.flush()
    lasting.crash()
    index = lasting.open()
    mark = index.mark(0)
    assert mark is not None
    assert mark >= Position(1, 6)
    assert len(index.locate_run(1, 0, 99, BOUND)) == mark.offset + 1


@pytest.mark.parametrize("batches", range(4))
def test_b10_of_what_was_not_flushed_whole_batches_survive_in_order(
    tmp_path: pathlib.Path, batches: int
) -> None:
    """As when a memtable was written out by itself: the memory engine can be told how far."""
    home = Home("memory", tmp_path)
    index = home.open()
    for i in range(4):
        fill(index, {(1, i): place(i)}, mark=i)
        if i == 0:
            index.flush()
    home.crash(batches)
    found = home.open()
    assert found.mark(0) == Position(1, batches)
    assert len(found.locate_run(1, 0, 9, BOUND)) == batches + 1
    fill(index, {(1, 50): place(5)}, mark=50)
    index.flush()
    assert found.locate(1, 50) is None, "whoever died writes nothing more"


def test_an_index_is_opened_once_at_a_time(lasting: Home) -> None:
    index = lasting.open()
    with pytest.raises(StorageUnavailable):
        lasting.open()
    fill(index, {(1, 0): place(0)})
    index.close()
    assert lasting.open().locate(1, 0) == place(0)


def test_613_what_a_frozen_index_takes_is_gone_with_it(lasting: Home) -> None:
    index = lasting.open()
    fill(index, {(1, i): place(i) for i in (0, 1, 3)}, mark=10)
    index.close()
    frozen = lasting.engine.open_frozen(lasting.folder, lasting.damages.append)
    assert frozen.mark(0) == Position(1, 10)
    fill(frozen, {(1, 2): place(2), (1, 1): place(9), (1, 4): place(4)}, mark=30)
    frozen.flush()
    run = [place(0), place(9), place(2), place(3), place(4)]
    assert frozen.locate_run(1, 0, 9, BOUND) == run, "above and below, in one order"
    assert frozen.mark(0) == Position(1, 30)
    frozen.close()
    index = lasting.open()
    assert index.mark(0) == Position(1, 10)
    assert index.locate_run(1, 0, 9, BOUND) == [place(0), place(1)]
    assert index.locate(1, 4) is None


def test_613_without_an_index_nothing_can_be_served_frozen(lasting: Home) -> None:
    with pytest.raises(StorageDamaged):
        lasting.engine.open_frozen(lasting.folder, lasting.damages.append)
    assert lasting.open().identity() is None, "and it did not make one that looks right"


def test_an_unusable_index_is_kept_until_the_next_one(lasting: Home) -> None:
    engine, folder = lasting.engine, lasting.folder
    engine.put_aside(folder, 1)  # there is none
    for now_ms, entry_id in ((5, 0), (6, 1)):
        index = lasting.open()
        assert index.locate_run(1, 0, 9, BOUND) == []
        fill(index, {(1, entry_id): place(0)})
        index.close()
        engine.put_aside(folder, now_ms)
    kept = folder.with_name("index.damaged-6")
    index = engine.open(kept, BUFFER_BYTES, lasting.damages.append)
    lasting.opened.append(index)
    assert index.locate(1, 1) == place(0)
    old = folder.with_name("index.damaged-5")
    with pytest.raises(StorageDamaged):
        engine.open_frozen(old, lasting.damages.append)


# --- all of them alike -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_all_give_the_answers_of_a_dictionary(anyone: Home, seed: int) -> None:
    rng = random.Random(seed)
    index = anyone.open()
    model: dict[tuple[int, int], Location] = {}
    if anyone.frozen:
        model[3, 7] = Location(1, 5, 40)
    for step in range(60):
        some: dict[tuple[int, int], Location] = {}
        for _ in range(rng.randrange(1, 8)):
            some[rng.randrange(5), rng.randrange(20)] = place(step, rng.choice((40, 90)))
        fill(index, some, mark=step)
        model |= some
        if rng.random() < 0.2:
            index.flush()
        ledger_id, first = rng.randrange(5), rng.randrange(20)
        count, nbytes = rng.randrange(1, 12), rng.choice((0, 60, 300, BOUND))
        expected: list[Location] = []
        for entry_id in range(first, first + count):
            found = model.get((ledger_id, entry_id))
            if found is None or sum(one.length for one in expected) > nbytes:
                break
            expected.append(found)
        assert index.locate_run(ledger_id, first, count, nbytes) == expected
        assert index.locate(ledger_id, first) == model.get((ledger_id, first))
        assert index.mark(0) == Position(1, step)
