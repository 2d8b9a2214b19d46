"""Records that are kept once by an id of their application (X14): the bytes, and one partition."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator

import pytest

from octavo.proto import batch as batches
from octavo.proto.batch import BatchMarks, decode_header, encode, verify
from octavo.proto.compression import Codec
from octavo.proto.dedup_ids import ID_BYTES_MAX, ID_HEADER, digest_of, is_marked, read_digest
from octavo.proto.opened_batches import recompress
from octavo.proto.segment_entries import (
    DEDUP_ITEM_BYTES,
    SegmentFigures,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from octavo.runtime.errors import (
    CorruptEntry,
    DedupWindowFull,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    NotLeader,
    PartitionDecommissioned,
)
from octavo.serving.dedup_rule import IDS_MAX
from octavo.serving.partition.log import ACKS_ALL, ACKS_NONE, ACKS_ONE, Appended
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.topic_config import parse_topic_config
from tests.serving_rig import NAME, NOW_MS, Answers, Rig, make_batch, make_config, produce

WINDOW = {"dedup_window_ms": "60000"}


def with_id(
    dedup_id: bytes | None,
    value: bytes = b"v",
    *,
    records: int = 1,
    headers: list[tuple[str, bytes | None]] | None = None,
    pid: int = -1,
    marks: int = BatchMarks.DEDUP,
) -> bytes:
    row = [(ID_HEADER, dedup_id)] if headers is None else headers
    made = encode(
        [NOW_MS] * records,
        [None] * records,
        [value] * records,
        [row] * records,
        codec=Codec.NONE,
        producer_id=pid,
        producer_epoch=0 if pid >= 0 else -1,
        base_sequence=0 if pid >= 0 else -1,
        marks=marks,
    )
    return bytes(made)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    await made.close()


# --- bytes ---------------------------------------------------------------------------------------


def test_the_id_is_a_header_that_every_reader_sees() -> None:
    batch = with_id(b"order-1")
    rows = batches.decode_rows(batch)
    assert rows.headers == [[("dedup_id", b"order-1")]]
    assert is_marked(rows.header)
    assert read_digest(batch) == digest_of(b"order-1")
    assert not is_marked(verify(with_id(b"order-1", marks=0)))


def test_the_mark_is_under_the_crc_and_outlives_another_codec() -> None:
    batch = bytearray(with_id(b"order-1", b"x" * 5_000))
    assert is_marked(verify(recompress(bytes(batch), Codec.ZSTD)))
    batch[22] ^= 1
    with pytest.raises(Exception, match="crc32c"):
        verify(bytes(batch))


@pytest.mark.parametrize(
    "batch",
    [
        with_id(b"a", records=2),
        with_id(b""),
        with_id(None),
        with_id(b"x" * (ID_BYTES_MAX + 1)),
        with_id(b"", headers=[]),
        with_id(b"", headers=[("other", b"1")]),
        with_id(b"", headers=[("dedup_id", b"1"), ("dedup_id", b"2")]),
    ],
    ids=range(7),
)
async def test_a_marked_batch_without_one_id_is_refused(rig: Rig, batch: bytes) -> None:
    with pytest.raises(InvalidRecord):
        read_digest(batch)
    shell = await rig.broker().open(NAME, **WINDOW)
    with pytest.raises(InvalidRecord):
        await produce(shell, batch)
    assert shell.high_watermark == 0


def test_ids_in_a_snapshot_and_snapshots_without_any() -> None:
    plain = Snapshot(uuid.UUID(int=1), 0, 9, 1, 2, SegmentFigures(1, 2, 3, 4))
    assert encode_snapshot(plain)[1] == 1, "as builds that know no ids read it"
    for count in (1, 3, IDS_MAX):
        ids = random.Random(count).randbytes(count * DEDUP_ITEM_BYTES)
        payload = encode_snapshot(plain._replace(dedup_ids=ids))
        assert payload[1] == 2
        assert decode_snapshot(payload) == plain._replace(dedup_ids=ids)
    assert decode_snapshot(encode_snapshot(plain)).dedup_ids == b""
    cut = encode_snapshot(plain._replace(dedup_ids=bytes(DEDUP_ITEM_BYTES)))
    for at in range(len(cut)):
        with pytest.raises(CorruptEntry):
            decode_snapshot(cut[:at])


def test_settings() -> None:
    config = make_config()
    assert parse_topic_config({}, config).dedup == (0, 10_000)
    given = {"dedup.window.ms": "5000", "dedup.window.ids": "7"}
    assert parse_topic_config(given, config).dedup == (5_000, 7)
    wrongs = {
        "dedup.window.ms": ("-1", str(31 * 86_400_000), "1h"),
        "dedup.window.ids": ("0", "50001"),
    }
    for name, values in wrongs.items():
        for value in values:
            with pytest.raises(InvalidConfig, match=name):
                parse_topic_config({name: value}, config)


# --- one partition -------------------------------------------------------------------------------


async def stored(shell: PartitionShell, dedup_id: bytes, value: bytes = b"v") -> tuple[int, bool]:
    answer = await produce(shell, with_id(dedup_id, value))
    return answer.base_offset, answer.duplicate


async def test_x14_the_second_send_is_told_where_the_first_is(rig: Rig) -> None:
    shell = await rig.broker().open(NAME, **WINDOW)
    await produce(shell, make_batch([b"other"]))
    assert await stored(shell, b"a") == (1, False)
    assert await stored(shell, b"b") == (2, False)
    assert await stored(shell, b"a", b"another value") == (1, True)
    assert shell.high_watermark == 3


@pytest.mark.parametrize("clean", [True, False])
async def test_x14_the_window_goes_with_the_partition(rig: Rig, clean: bool) -> None:
    """By the snapshot of a clean hand-over, or of the ledger's begin and the batches behind it."""
    first = await rig.broker().open(NAME, **WINDOW)
    assert await stored(first, b"a") == (0, False)
    await first.roll()
    assert await stored(first, b"b") == (1, False)  # a new ledger: its first entry is a snapshot
    assert await stored(first, b"c") == (2, False)
    if clean:
        await first.close(5.0)
    second = await rig.broker().open(NAME, **WINDOW)
    assert [await stored(second, one) for one in (b"a", b"b", b"c", b"d")] == [
        (0, True),
        (1, True),
        (2, True),
        (3, False),
    ]
    await second.roll()
    await second.trim(-1)  # I10: what is remembered outlives the data
    third = await rig.broker().open(NAME, **WINDOW)
    assert await stored(third, b"a") == (0, True)
    assert await stored(third, b"d") == (3, True)


async def test_x14_a_damaged_snapshot_gives_way_to_an_older_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await rig.broker(snapshot_interval_records=2).open(NAME, **WINDOW)
    for number in range(7):
        assert await stored(first, b"%d" % number) == (number, False)
    (ledger,) = rig.bookies.ledgers.values()
    at = max(i for i, entry in enumerate(ledger.entries) if entry[36] == 0xB8)
    assert at > 0
    damaged = bytearray(ledger.entries[at])
    damaged[-1] ^= 0xFF
    ledger.entries[at] = bytes(damaged)
    second = await rig.broker().open(NAME, **WINDOW)
    assert [await stored(second, b"%d" % n) for n in range(7)] == [(n, True) for n in range(7)]


async def test_x14_two_sends_at_a_time_are_one_record(rig: Rig) -> None:
    shell = await rig.broker().open(NAME, **WINDOW)
    await produce(shell, make_batch([b"first"]))
    rig.bookies.hold = True
    answers = Answers()
    for _ in range(3):
        shell.append(with_id(b"a"), ACKS_ALL, answers.reply)
    assert not answers.all
    rig.bookies.release()
    told = await answers.wait(3)
    assert [(a.base_offset, a.duplicate) for a in told if isinstance(a, Appended)] == [
        (1, False),
        (1, True),
        (1, True),
    ]
    assert shell.high_watermark == 2


async def test_i3_an_id_is_new_again_when_its_record_was_not_written(rig: Rig) -> None:
    shell = await rig.broker().open(NAME, **WINDOW)
    await produce(shell, make_batch([b"first"]))
    rig.bookies.hold = True
    answers = Answers()
    shell.append(with_id(b"a"), ACKS_ALL, answers.reply)
    shell.append(with_id(b"a"), ACKS_ALL, answers.reply)
    new = await rig.broker().open(NAME, **WINDOW)  # fences; the recovery finds nothing of it
    rig.bookies.release()
    told = await answers.wait(2)
    assert all(isinstance(answer, NotLeader) for answer in told)
    assert await stored(new, b"a") == (1, False)


async def test_x14_a_full_window_refuses_and_forgets_nothing(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open(NAME, **WINDOW, dedup_window_ids="2")
    assert [await stored(shell, one) for one in (b"a", b"b")] == [(0, False), (1, False)]
    with pytest.raises(DedupWindowFull, match="2 ids count") as caught:
        await produce(shell, with_id(b"c"))
    assert caught.value.retriable
    assert 100 <= int(caught.value.details["throttle_ms"]) <= 1_000
    assert [await stored(shell, one) for one in (b"a", b"b")] == [(0, True), (1, True)]
    assert (await produce(shell, make_batch([b"plain"]))).base_offset == 2, "others are not held"
    shell.adopt(broker.settings(**WINDOW, dedup_window_ids="3"))
    assert await stored(shell, b"c") == (3, False)
    shell.adopt(broker.settings(**WINDOW, dedup_window_ids="1"))  # what counts goes on counting
    assert await stored(shell, b"a") == (0, True)
    with pytest.raises(DedupWindowFull):
        await produce(shell, with_id(b"d"))


async def test_x14_an_id_counts_for_its_window(rig: Rig) -> None:
    shell = await rig.broker().open(dedup_window_ms="30")
    assert await stored(shell, b"a") == (0, False)
    await asyncio.sleep(0.05)  # time itself is the condition
    assert await stored(shell, b"a") == (1, False)
    moved = await rig.broker().open(NAME, **WINDOW)
    assert await stored(moved, b"a") == (1, True), "the newest of two that were stored"


async def test_x14_a_topic_that_remembers_nothing_refuses_ids(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open()
    with pytest.raises(InvalidRecord, match="its topic remembers none") as caught:
        await produce(shell, with_id(b"a"))
    assert "dedup.window.ms" in caught.value.hint
    assert await produce(shell, with_id(b"a", marks=0)), "a header alone asks for nothing"
    shell.adopt(broker.settings(**WINDOW))
    assert await stored(shell, b"a") == (1, False)


async def test_what_else_a_record_with_an_id_may_not_be(rig: Rig) -> None:
    shell = await rig.broker().open(NAME, **WINDOW)
    for acks in (ACKS_NONE, ACKS_ONE):
        with pytest.raises(InvalidRequest, match="acks=all and no producer id"):
            await produce(shell, with_id(b"a"), acks)
    with pytest.raises(InvalidRequest, match="acks=all and no producer id"):
        await produce(shell, with_id(b"a", pid=7))
    with pytest.raises(InvalidRecord, match="marks 0x2"):
        await produce(shell, with_id(b"a", marks=2))
    assert shell.high_watermark == 0


async def test_f027_a_decommissioned_partition_still_tells_of_what_it_has(rig: Rig) -> None:
    shell = await rig.broker().open(NAME, **WINDOW)
    assert await stored(shell, b"a") == (0, False)
    shell._core.list_changed(0, decommissioned=True)  # pyright: ignore[reportPrivateUsage]
    assert await stored(shell, b"a") == (0, True)
    with pytest.raises(PartitionDecommissioned):
        await produce(shell, with_id(b"b"))


def test_builds_that_know_no_marks_read_such_batches() -> None:
    """They skip the two bytes; everything else is as in any batch."""
    batch = with_id(b"a")
    header = decode_header(batch)
    plain = decode_header(with_id(b"a", marks=0))
    assert header._replace(marks=0, body_crc=0) == plain._replace(body_crc=0)
