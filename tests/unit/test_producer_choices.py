"""What a topic decides of batches: their codec (F039), whose time counts, and how skewed (X23)."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from octavo.proto import batch as batches
from octavo.proto import opened_batches
from octavo.proto.batch import BatchFlags, decode_rows, encode, verify
from octavo.proto.batch_arrow import decode_arrow
from octavo.proto.compacted import without_records
from octavo.proto.compression import CODECS, Codec
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptBatch, InvalidConfig, InvalidTimestamp
from octavo.serving.partition.log import Appended
from octavo.serving.partition.read_path import Found, offset_for_time, read_at
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.recompression import Recompressor
from octavo.serving.topic_config import effective, parse_topic_config, settings_of
from tests.serving_rig import NOW_MS, Rig, make_config, produce

HOUR_MS = 3_600_000
JSON = [json.dumps({"user": n % 7, "event": "click", "page": "/items"}).encode() for n in range(99)]


def batch_of(
    times: list[int], *, codec: int = Codec.LZ4, producer: tuple[int, int, int] = (-1, -1, -1)
) -> Buffer:
    values: list[bytes | None] = [JSON[n % len(JSON)] for n in range(len(times))]
    return encode(
        times,
        [None] * len(times),
        values,
        [[("n", b"1")]] * len(times),
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression.type", "zip"),
        ("compression.type", "LZ4"),
        ("message.timestamp.type", "CreateTime"),
        ("message.timestamp.before.max.ms", "-1"),
        ("message.timestamp.after.max.ms", "soon"),
    ],
)
def test_f039_x23_unknown_values_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        parse_topic_config({name: value}, make_config())
    assert settings_of({name: value}, make_config()) == settings_of({}, make_config())


def test_f039_x23_the_defaults_leave_batches_as_they_come() -> None:
    shown = effective({}, make_config())
    assert shown["compression.type"] == "producer"
    assert shown["message.timestamp.type"] == "create"
    assert shown["message.timestamp.after.max.ms"] == str(HOUR_MS)
    assert parse_topic_config({}, make_config()).codec is None
    for name, codec in CODECS.items():
        assert parse_topic_config({"compression.type": name}, make_config()).codec == codec


# --- compression.type (F039) --------------------------------------------------------------------


@pytest.mark.parametrize("wanted", list(Codec))
@pytest.mark.parametrize("sent", list(Codec))
async def test_f039_a_batch_under_the_topics_codec_is_one_that_every_reader_checks(
    sent: Codec, wanted: Codec
) -> None:
    given = batch_of([NOW_MS + n for n in range(99)], codec=sent, producer=(7, 1, 20))
    recompressor = Recompressor()
    made = await recompressor.under(wanted, given, 1 << 20)
    await recompressor.close()
    assert (made is given) == (sent == wanted)
    header = verify(made)
    assert header.codec == wanted
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 20)
    assert decode_rows(made)[2:] == decode_rows(given)[2:]
    assert header.max_timestamp_ms == NOW_MS + 98


async def test_f039_what_does_not_shrink_or_fit_stays_readable_and_damage_is_refused() -> None:
    recompressor = Recompressor()
    given = batch_of([NOW_MS] * 99, codec=Codec.ZSTD)
    limit = len(given) + 1
    assert await recompressor.under(Codec.NONE, given, limit) is given  # would not fit then
    assert await recompressor.under(Codec.NONE, given, len(given) - 1) is given  # for its check
    noise = random.Random(1).randbytes(20_000)
    dense = encode([NOW_MS], [None], [noise], codec=Codec.NONE)
    assert verify(await recompressor.under(Codec.LZ4, dense, 1 << 20)).codec == Codec.NONE
    damaged = bytes(given[:-1]) + bytes((given[-1] ^ 1,))
    with pytest.raises(CorruptBatch):
        await recompressor.under(Codec.NONE, damaged, 1 << 20)
    await recompressor.close()


# --- message.timestamp.type (X23) ---------------------------------------------------------------


async def stored(shell: PartitionShell) -> list[bytes]:
    found = await read_at(shell.view(), 0, 1 << 20, at_least_one=True)
    return [bytes(one) for one in found.batches]


async def test_x23_append_time_is_the_owners_monotone_and_marked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = await rig.broker().open(message_timestamp_type="append")
    sent = [batch_of([5, 10**15], producer=(3, 0, 2 * n)) for n in range(3)]  # skew is nothing here
    acked: list[Appended] = []
    for one, now_ms in zip(sent, (NOW_MS, NOW_MS - 5000, NOW_MS + 10), strict=True):
        monkeypatch.setattr(rig.clock, "wall_ms", lambda now_ms=now_ms: now_ms)
        acked.append(await produce(shell, bytes(one)))
    times = [one.append_time_ms for one in acked]
    assert times == [NOW_MS, NOW_MS, NOW_MS + 10]  # the wall clock went back once
    kept = await stored(shell)
    assert len(kept) == 3
    for data, time_ms, before in zip(kept, times, sent, strict=True):
        header = verify(data)
        assert header.flags & BatchFlags.APPEND_TIME
        assert header.base_timestamp_ms == header.max_timestamp_ms == time_ms
        rows = decode_rows(data)
        assert list(rows.timestamps_ms) == [time_ms, time_ms]
        assert (rows.keys, rows.values, rows.headers) == decode_rows(before)[3:]
        assert decode_arrow(data).column("timestamp").cast(pa.int64()).to_pylist() == [time_ms] * 2
        assert batches.body_of(data, header) == batches.body_of(before, verify(before))
    again = await produce(shell, bytes(sent[2]))  # a repetition is known as before
    assert again.duplicate
    assert again.base_offset == acked[2].base_offset


async def test_x23_searches_and_retention_go_by_the_append_time(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open(message_timestamp_type="append")
    acked = await produce(shell, bytes(batch_of([5, 6])))
    time_ms = acked.append_time_ms
    assert await offset_for_time(shell.view(), time_ms) == Found(0, time_ms)
    assert await offset_for_time(shell.view(), time_ms + 1) is None
    await shell.roll()
    (segment,) = [one for one in shell.described() if one.end_offset]
    assert segment.max_timestamp_ms == segment.last_append_ms == time_ms
    assert await offset_for_time(shell.view(), time_ms) == Found(0, time_ms)


async def test_x23_k8_what_compaction_leaves_keeps_its_append_time() -> None:
    data = batches.stamp_append_time(
        batch_of([5, 6, 7]), base_offset=40, owner_epoch=2, append_time_ms=NOW_MS
    )
    (left,) = without_records(data, verify(data), pa.array([False, True, True]))
    header = verify(left)
    assert header.max_timestamp_ms == header.append_time_ms == NOW_MS
    assert list(decode_rows(left).timestamps_ms) == [NOW_MS, NOW_MS]
    assert list(decode_rows(left).offsets) == [41, 42]


async def test_x23_times_beyond_the_limits_are_refused_and_the_record_is_named(rig: Rig) -> None:
    shell = await rig.broker().open(message_timestamp_before_max_ms=str(HOUR_MS))
    now_ms = rig.clock.wall_ms()
    late, early = now_ms + 2 * HOUR_MS, now_ms - 2 * HOUR_MS
    for times, record, side in (
        ([now_ms, now_ms, late], 2, "after"),
        ([now_ms, early, now_ms], 1, "before"),  # the header tells of the first and the last only
        ([early], 0, "before"),
    ):
        with pytest.raises(InvalidTimestamp, match=f"record {record} of {len(times)}") as caught:
            await produce(shell, bytes(batch_of(times)))
        assert caught.value.details["record"] == record
        assert f"message.timestamp.{side}.max.ms" in caught.value.hint
    assert shell.high_watermark == 0  # nothing of these batches was written
    assert (await produce(shell, bytes(batch_of([now_ms - HOUR_MS // 2])))).base_offset == 0


async def test_x23_without_a_limit_behind_no_body_is_opened(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = await rig.broker().open()

    def opened(*_: object) -> None:
        raise AssertionError("the body was opened")

    monkeypatch.setattr(opened_batches, "body_of", opened)
    assert (await produce(shell, bytes(batch_of([5])))).base_offset == 0
