"""Batches by size and time, memory, order (F037, F038, I4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.messaging.producing.accumulator import Accumulator, Slot
from octavo.client.messaging.producing.batches import Batch, Columns, Row
from octavo.client.messaging.producing.in_flight import Partition
from octavo.client.messaging.producing.terms import Terms
from octavo.proto import batch as batch_format

NOW = [0.0]


def append(accumulator: Accumulator, slot: Slot, record: Row, now_s: float) -> Batch:
    NOW[0] = now_s
    batch = accumulator.append(slot, record).completion
    assert isinstance(batch, Batch)
    return batch


def made(batch_size: int = 1000, linger_s: float = 1.0) -> tuple[Accumulator, Slot]:
    accumulator = Accumulator(
        batch_size=batch_size, linger_s=linger_s, buffer_memory=10_000, now_s=lambda: NOW[0]
    )
    return accumulator, Slot(Partition("t", 0))


def row(size: int, value: bytes = b"v") -> Row:
    return (7, b"k", value, (), size)


def test_a_full_batch_is_ready_at_once() -> None:
    accumulator, slot = made()
    for _ in range(3):
        append(accumulator, slot, row(400), 0.0)
    batch = accumulator.take(slot)
    assert batch is not None
    assert (batch.count, batch.size_bytes) == (2, 800)
    assert accumulator.take(slot) is None


def test_a_record_that_fills_the_batch_closes_it() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(1000), 0.0)
    assert slot.open is None
    append(accumulator, slot, row(5000), 0.0)
    taken = [accumulator.take(slot), accumulator.take(slot)]
    assert [batch.count for batch in taken if batch] == [1, 1]


def test_a_partition_is_ready_exactly_as_long_as_another_batch_follows() -> None:
    """The loop looks at ready ones only: one left in is looked at for nothing, one left out waits
    for ever."""
    accumulator, slot = made()
    for size in (1000, 1000, 10):
        append(accumulator, slot, row(size), 0.0)
    accumulator.take(slot)
    assert slot in accumulator.ready
    accumulator.take(slot)
    assert slot not in accumulator.ready  # the open one lingers
    assert accumulator.take(slot) is None
    accumulator.expedite_all()
    assert slot in accumulator.ready
    assert accumulator.take(slot) is not None
    assert slot not in accumulator.ready


def test_a_batch_that_became_due_behind_a_closed_one_keeps_its_partition_ready() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(1000), 0.0)
    append(accumulator, slot, row(10), 0.0)
    accumulator.expedite_all()
    assert accumulator.take(slot) is not None
    assert slot in accumulator.ready
    assert accumulator.take(slot) is not None
    assert not accumulator.ready


def test_linger_makes_an_open_batch_due_and_wakes_once() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(10), 5.0)
    assert accumulator.wake_wanted
    accumulator.wake_wanted = False
    accumulator.timer_armed = True
    other = Slot(Partition("t", 1))
    append(accumulator, other, row(10), 5.5)
    assert not accumulator.wake_wanted
    assert accumulator.mark_due(5.9) == 6.0
    assert accumulator.take(slot) is None
    assert accumulator.mark_due(6.0) == 6.5
    assert accumulator.take(slot) is not None
    assert accumulator.mark_due(7.0) is None


def test_a_due_batch_keeps_growing_until_taken() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(10), 0.0)
    accumulator.mark_due(2.0)
    append(accumulator, slot, row(10), 2.0)
    batch = accumulator.take(slot)
    assert batch is not None
    assert batch.count == 2


def test_memory_is_counted_until_the_batch_is_finished() -> None:
    accumulator, slot = made()
    batch = append(accumulator, slot, row(400), 0.0)
    assert accumulator.free_bytes == 9_600
    woken: list[int] = []
    accumulator.on_space(lambda: woken.append(1))
    accumulator.expedite(slot, batch)
    assert accumulator.take(slot) is batch
    assert accumulator.free_bytes == 9_600
    accumulator.finished([batch, batch])
    assert accumulator.free_bytes == 10_000
    assert woken == [1]


def test_expired_batches_are_those_never_taken() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(1000), 0.0)
    append(accumulator, slot, row(10), 3.0)
    accumulator.mark_due(4.0)
    assert [batch.created_s for batch in accumulator.take_expired(2.0)] == [0.0]
    assert [batch.created_s for batch in accumulator.take_expired(3.0)] == [3.0]
    assert slot.open is None


def test_headers_appear_in_the_middle_of_a_batch() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(10), 0.0)
    append(accumulator, slot, (8, None, None, [("a", b"1"), ("a", None)], 10), 0.0)
    append(accumulator, slot, row(10), 0.0)
    accumulator.expedite_all()
    batch = accumulator.take(slot)
    assert batch is not None
    rows = batch_format.decode_rows(batch.encoded(0, (1, 2, 3)))
    assert rows.headers == [[], [("a", b"1"), ("a", None)], []]
    assert rows.keys == [b"k", None, b"k"]
    assert rows.values == [b"v", None, b"v"]
    assert rows.header.base_sequence == 3


def test_a_retry_keeps_its_bytes_and_new_numbers_change_only_the_header() -> None:
    batch = Batch("t", 0, 0.0)
    batch.cells = [1, b"k", b"v", ()]
    first = batch.encoded(0, (1, 0, 5))
    assert batch.encoded(0, (1, 0, 5)) is first
    again = batch.encoded(0, (2, 0, 0))
    assert batch_format.verify(again).producer_id == 2
    assert again[batch_format.HEADER_BYTES :] == first[batch_format.HEADER_BYTES :]


@given(
    st.lists(st.integers(1, 60), max_size=60),
    st.lists(st.integers(1, 60), max_size=60),
)
def test_bulk_append_cuts_like_single_appends(first: list[int], many: list[int]) -> None:
    single, slot_a = made(batch_size=100)
    bulk, slot_b = made(batch_size=100)
    for size in first:
        append(single, slot_a, row(size), 0.0)
        append(bulk, slot_b, row(size), 0.0)
    values = [b"%d" % n for n in range(len(many))]
    for size, value in zip(many, values, strict=True):
        append(single, slot_a, (7, None, value, (), size), 0.0)
    columns = Columns([7] * len(many), [None] * len(many), values, None, many)
    spans = bulk.append_many(slot_b, columns)
    assert sum(span.size for span in spans) == len(many)
    assert single.free_bytes == bulk.free_bytes

    def shape(accumulator: Accumulator, slot: Slot) -> list[tuple[int, list[bytes | None]]]:
        accumulator.close_open(slot)
        return [(batch.size_bytes, list(batch.columns().values)) for batch in slot.closed]

    assert shape(single, slot_a) == shape(bulk, slot_b)


def test_x14_records_with_ids_are_a_batch_each_in_bulk_too() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(10), 0.0)
    values: list[bytes | None] = [b"a", b"b", b"c"]
    columns = Columns([7] * 3, [None] * 3, values, None, [10] * 3)
    spans = accumulator.append_many(slot, columns, Terms(once=True))
    accumulator.append_many(slot, columns, Terms(1))
    assert [(span.start, span.size) for span in spans] == [(0, 1)] * 3
    accumulator.close_open(slot)
    held = [(batch.count, batch.terms) for batch in slot.closed]
    assert held == [(1, Terms()), *[(1, Terms(once=True))] * 3, (3, Terms(1))]


def test_batch_size_zero_means_one_record_per_batch() -> None:
    accumulator, slot = made(batch_size=1)
    for _ in range(3):
        append(accumulator, slot, row(10), 0.0)
    assert [batch.count for batch in slot.closed] == [1, 1, 1]


def test_take_all_empties_everything() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(1000), 0.0)
    append(accumulator, slot, row(10), 0.0)
    assert len(accumulator.take_all()) == 2
    assert accumulator.pending_records() == 2
    assert accumulator.take_all() == []


@pytest.mark.parametrize("count", [1, 3])
def test_oldest_ready(count: int) -> None:
    accumulator, slot = made(batch_size=1)
    for n in range(count):
        append(accumulator, slot, row(10), float(n))


def test_behind_full_batches_that_wait_the_open_one_grows_beyond_batch_size() -> None:
    accumulator, slot = made()
    slot.grown_bytes_max = 2500
    first = append(accumulator, slot, row(1000), 0.0)
    assert list(slot.closed) == [first]
    grown = [append(accumulator, slot, row(800), 1.0) for _ in range(3)]
    assert grown == [grown[0]] * 3  # 2400 bytes, above batch_size
    assert grown[0].due  # and not lingering: it goes as soon as the window opens
    assert append(accumulator, slot, row(200), 2.0) is not grown[0]
    assert [batch.size_bytes for batch in slot.closed] == [1000, 2400]
    assert [accumulator.take(slot), accumulator.take(slot)] == [first, grown[0]]
    last = append(accumulator, slot, row(700), 3.0)  # nobody waits: batch_size counts again
    assert last.size_bytes == 900
    assert append(accumulator, slot, row(200), 3.0) is not last


def test_bulk_columns_fill_the_growing_batch_too() -> None:
    accumulator, slot = made()
    slot.grown_bytes_max = 2500
    append(accumulator, slot, row(1000), 0.0)
    values: list[bytes | None] = [b"x"] * 10
    spans = accumulator.append_many(slot, Columns([1] * 10, values, values, None, [500] * 10))
    assert [span.size for span in spans] == [5, 5]
    assert [batch.size_bytes for batch in slot.closed] == [1000, 2500, 2500]


def test_nothing_grows_when_batching_is_off() -> None:
    accumulator, slot = made(batch_size=0)
    for _ in range(3):
        append(accumulator, slot, row(10), 0.0)
    counts = [batch.count for batch in iter(lambda: accumulator.take(slot), None) if batch]
    assert counts == [1, 1, 1]


def test_an_open_batch_without_a_record_is_nobodys_business() -> None:
    """Between opening a batch and its first record a signal handler may flush, wait and close."""
    accumulator, slot = made(linger_s=1.0)
    NOW[0] = 0.0
    accumulator._open(slot, accumulator.terms)  # pyright: ignore[reportPrivateUsage]  # here the section is left
    opened = slot.open
    accumulator.expedite_all()
    accumulator.close_open(slot)
    assert accumulator.waiting() == []
    assert accumulator.take(slot) is None
    following = accumulator.mark_due(5.0)
    assert following is not None
    assert 5.0 < following < 5.1, "it is looked at again soon"
    assert accumulator.take_expired(9.0) == []
    assert slot.open is opened
    assert append(accumulator, slot, row(100), 5.0) is opened
    assert accumulator.mark_due(5.1) is None
    assert accumulator.take(slot) is opened


def test_the_end_drops_an_open_batch_without_a_record() -> None:
    accumulator, slot = made()
    NOW[0] = 0.0
    accumulator._open(slot, accumulator.terms)  # pyright: ignore[reportPrivateUsage]
    opened = slot.open
    assert accumulator.take_all() == []
    assert not accumulator.pending
    assert append(accumulator, slot, row(100), 0.0) is not opened


# --- terms (F032) --------------------------------------------------------------------------------

DEFAULT, ONE, THREE = Terms(), Terms(1), Terms(min_insync_replicas=3)


@given(st.lists(st.sampled_from((None, ONE, THREE, "bulk")), min_size=1, max_size=40))
def test_f032_records_of_different_terms_never_share_a_batch_and_keep_their_order(
    sends: list[Terms | str | None],
) -> None:
    accumulator, slot = made(batch_size=1_000)
    for number, terms in enumerate(sends):
        value = b"%d" % number
        if isinstance(terms, str):
            accumulator.append_many(slot, Columns([7], [None], [value], None, [100]))
        else:
            accumulator.append(slot, row(100, value), terms)
    accumulator.expedite_all()
    taken = [batch for batch in iter(lambda: accumulator.take(slot), None) if batch]
    found = [(value, batch.terms) for batch in taken for value in batch.columns().values]
    expected = [
        (b"%d" % number, terms if isinstance(terms, Terms) else DEFAULT)
        for number, terms in enumerate(sends)
    ]
    assert found == expected
    assert not slot.closed
    assert slot.open is None


def test_an_open_batch_without_a_record_takes_the_terms_of_its_first_one() -> None:
    accumulator, slot = made()
    NOW[0] = 0.0
    accumulator._open(slot, DEFAULT)  # pyright: ignore[reportPrivateUsage]  # here the section ends
    opened = slot.open
    assert accumulator.append(slot, row(100), ONE).completion is opened
    assert opened is not None
    assert opened.terms is ONE
    accumulator.append_many(slot, Columns([7], [None], [b"v"], None, [100]))
    assert [batch.terms for batch in slot.closed] == [ONE]


def test_a_batch_made_elsewhere_keeps_its_terms_and_its_place() -> None:
    accumulator, slot = made()
    append(accumulator, slot, row(10), 0.0)
    batch = Batch("t", 0, 0.0, terms=ONE)
    batch.count = batch.size_bytes = 1
    accumulator.append_made(slot, batch)
    assert [each.terms for each in slot.closed] == [Terms(), ONE]
