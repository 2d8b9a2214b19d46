"""The segment codec and the judgement of a journal, on bytes alone (spec/ledger.md §6.2, §6.8)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from octavo.bookie.journal.replay import Evidence, Span, Verdict, judge, span_records
from octavo.bookie.journal.segment import (
    HEADER_BYTES,
    START,
    FooterBuilder,
    FooterRow,
    Position,
    RecordType,
    SegmentHeader,
    batch_records,
    decode_segment_header,
    encode_batch,
    encode_segment_header,
    footer_offset,
    footer_rows,
    scan_segment,
)
from octavo.runtime.checksum import crc32c
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion

INSTANCE = uuid.UUID(int=1)


def header(number: int = 1, after: Position = START) -> SegmentHeader:
    return SegmentHeader(
        0, INSTANCE, uuid.UUID(int=2), uuid.UUID(int=1000 + number), number, 7, after
    )


class SegmentBytes:
    """Builds a segment as the writer does."""

    def __init__(self, number: int = 1, after: Position = START, carried: bytes = b"") -> None:
        self.header = header(number, after)
        if carried:
            size = len(encode_batch(0, 0, 0, after, [0], [], 0)) + len(carried)
            self.header = self.header._replace(carried_bytes=size)
        self.data = bytearray(encode_segment_header(self.header))
        self.durable = Position(number, len(self.data))
        self.sequence = 0
        if carried:
            self.durable = after
            self.batch((0, carried))

    def batch(self, *records: tuple[int, bytes]) -> Position:
        words = [kind << 24 | len(data) for kind, data in records]
        blobs = [data for _, data in records]
        self.data += encode_batch(
            self.header.salt,
            self.header.number,
            self.sequence,
            self.durable,
            words,
            blobs,
            sum(map(len, blobs)),
        ) + b"".join(blobs)
        self.sequence += 1
        self.durable = Position(self.header.number, len(self.data))
        return self.durable

    def blank(self, size: int = 500) -> bytes:
        return bytes(self.data) + b"\0" * size

    def seal(self) -> bytes:
        return bytes(self.data) + b"".join(FooterBuilder().encode(self.header, len(self.data)))


def verdict(
    files: Mapping[int, bytes],
    mark: Position = START,
    *proven: Position,
    salvage: bool = False,
) -> Verdict:
    return judge(
        mark,
        sorted(files),
        lambda number: files[number],
        INSTANCE,
        evidence=[Evidence(position, "a test") for position in proven],
        salvage=salvage,
    )


def records(files: Mapping[int, bytes], spans: list[Span]) -> list[bytes]:
    return [
        record.data
        for span in spans
        for _, found in span_records(span, files[span.segment])
        for record in found
    ]


def replayed(files: Mapping[int, bytes], found: Verdict) -> list[bytes]:
    """Everything a boot applies: what is proven, and what it writes again first."""
    return records(files, [*found.spans, *found.tail])


def test_header_round_trip_and_every_flip_is_noticed() -> None:
    original = header(5, Position(4, 999))
    encoded = encode_segment_header(original)
    assert len(encoded) == HEADER_BYTES
    assert decode_segment_header(encoded) == original
    for offset in range(HEADER_BYTES):
        changed = bytearray(encoded)
        changed[offset] ^= 1
        with pytest.raises((CorruptEntry, UnsupportedVersion)):
            decode_segment_header(bytes(changed))


def test_batch_round_trip() -> None:
    segment = SegmentBytes()
    segment.batch((RecordType.ENTRY, b"one"), (RecordType.FENCE, b"x" * 16))
    segment.batch()
    scan = scan_segment(segment.blank(), 0)
    assert [b.record_count for b in scan.batches] == [2, 0]
    records = list(batch_records(segment.blank(), scan.batches[0]))
    assert [(r.type, r.data) for r in records] == [(0, b"one"), (1, b"x" * 16)]
    assert segment.data[records[0].offset :][:3] == b"one"
    assert scan.end == len(segment.data)
    assert scan.proven_end == scan.batches[1].offset


def test_a_batch_of_another_segment_never_validates() -> None:
    """§6.2: the crc is salted with the segment's uuid."""
    first, second = SegmentBytes(1), SegmentBytes(1)
    second.header = second.header._replace(segment_uuid=uuid.UUID(int=77))
    first.batch((0, b"stale"))
    stale = bytes(first.data[HEADER_BYTES:])
    data = encode_segment_header(second.header) + stale
    assert scan_segment(data, 0).batches == []
    assert scan_segment(data, 0).beyond == []


def test_footer_lists_entries_sorted() -> None:
    segment = SegmentBytes()
    segment.batch((0, b"x" * 40))
    builder = FooterBuilder()
    builder.add(9, 1, 300, 40)
    builder.add(2, 5, 200, 40)
    builder.add(2, 3, 100, 40)
    data = bytes(segment.data) + b"".join(builder.encode(segment.header, len(segment.data)))
    assert footer_offset(data, segment.header) == len(segment.data)
    assert list(footer_rows(data, segment.header)) == [
        FooterRow(2, 3, 100, 40),
        FooterRow(2, 5, 200, 40),
        FooterRow(9, 1, 300, 40),
    ]
    for offset in range(len(segment.data), len(data)):
        changed = bytearray(data)
        changed[offset] ^= 0x10
        assert footer_offset(bytes(changed), segment.header) is None


def test_b15_torn_tail_is_cut() -> None:
    segment = SegmentBytes()
    segment.batch((0, b"acked"))
    end = segment.durable
    segment.batch((0, b"never acknowledged" * 10))
    torn = bytes(segment.data[:-7]) + b"\0" * 100
    files = {1: torn}
    found = verdict(files)
    assert found.problems == []
    assert found.durable == START, "the first batch was synced, but nothing proves it"
    assert [(span.segment, span.batches[-1].end) for span in found.tail] == [end]
    assert found.open_ends == [end]
    assert replayed(files, found) == [b"acked"]


def test_b15_damage_before_a_proof_is_corruption() -> None:
    segment = SegmentBytes()
    first = segment.batch((0, b"acked" * 5))
    segment.batch((0, b"also acked"))
    segment.batch()  # the idle mark
    data = bytearray(segment.blank())
    data[first.offset - 3] ^= 1
    found = verdict({1: bytes(data)})
    assert len(found.problems) == 1
    assert "durable" in found.problems[0]


def test_b15_the_idle_mark_protects_the_last_batch() -> None:
    segment = SegmentBytes()
    last = segment.batch((0, b"acked"))
    unprotected = bytearray(segment.blank())
    unprotected[last.offset - 1] ^= 1
    assert verdict({1: bytes(unprotected)}).problems == []
    segment.batch()
    protected = bytearray(segment.blank())
    protected[last.offset - 1] ^= 1
    assert verdict({1: bytes(protected)}).problems != []


def test_a_successor_proves_its_predecessor() -> None:
    """B-13, B-15: a header names the durable end of the segment before it."""
    first = SegmentBytes(1)
    end = first.batch((0, b"acked"))
    second = SegmentBytes(2, end)
    assert verdict({1: first.blank(), 2: second.blank()}).problems == []
    damaged = bytearray(first.blank())
    damaged[end.offset - 1] ^= 1
    assert verdict({1: bytes(damaged), 2: second.blank()}).problems != []


def test_garbage_behind_the_end_of_a_crashed_segment_stays_harmless() -> None:
    """A tail cut at one boot is not taken for damage at the next one."""
    first = SegmentBytes(1)
    end = first.batch((0, b"acked"))
    torn = bytes(first.data) + b"garbage of a torn write"
    second = SegmentBytes(2, end)
    second.batch((0, b"later"))
    second.batch()
    files = {1: torn, 2: second.blank()}
    found = verdict(files)
    assert found.problems == []
    assert replayed(files, found) == [b"acked", b"later"]


@pytest.mark.parametrize("missing", [1, 2])
def test_b13_missing_segment_is_noticed(missing: int) -> None:
    files: dict[int, bytes] = {}
    after = START
    for number in (1, 2, 3):
        segment = SegmentBytes(number, after)
        after = segment.batch((0, b"acked %d" % number))
        files[number] = segment.seal()
    assert verdict(files).problems == []
    del files[missing]
    assert verdict(files).problems != []


def test_missing_segment_of_the_mark() -> None:
    assert verdict({}, Position(3, HEADER_BYTES)).problems != []
    assert verdict({}, START).problems == []


def test_mark_beyond_the_valid_end_is_loss() -> None:
    segment = SegmentBytes()
    end = segment.batch((0, b"acked"))
    assert verdict({1: segment.blank()}, end).problems == []
    assert verdict({1: bytes(segment.data[: end.offset - 2])}, end).problems != []


def test_creation_cut_short_is_nothing() -> None:
    first = SegmentBytes(1)
    end = first.batch((0, b"acked"))
    files = {1: first.blank(), 2: b"\0" * 300}
    found = verdict(files)
    assert found.problems == []
    assert replayed(files, found) == [b"acked"]
    third = SegmentBytes(3, end)
    assert verdict({**files, 3: third.blank()}).problems == []


def test_damaged_header_in_front_of_data() -> None:
    segment = SegmentBytes()
    segment.batch((0, b"acked"))
    data = bytearray(segment.blank())
    data[20] ^= 1
    assert verdict({1: bytes(data)}).problems != []


def test_foreign_segment_is_refused() -> None:
    segment = SegmentBytes()
    segment.header = segment.header._replace(instance_id=uuid.UUID(int=99))
    data = encode_segment_header(segment.header)
    assert verdict({1: data}).problems != []
    assert verdict({1: data}).spans == []


def test_unreadable_segment_is_a_problem_not_an_end() -> None:
    def load(number: int) -> bytes:
        raise OSError(5, "injected")

    assert judge(START, [1], load, INSTANCE).problems != []


def test_b25_salvage_takes_what_lies_behind_damage() -> None:
    segment = SegmentBytes()
    first = segment.batch((0, b"lost"))
    segment.batch((0, b"kept"))
    segment.batch()
    data = bytearray(segment.blank())
    data[first.offset - 1] ^= 1
    files = {1: bytes(data)}
    found = verdict(files, salvage=True)
    assert found.problems != []
    assert replayed(files, found) == [b"kept"]


def test_format_1_is_refused_by_name_not_called_damaged() -> None:
    old = bytearray(encode_segment_header(header()))
    old[8:10] = (1).to_bytes(2)
    old[96:HEADER_BYTES] = bytes(HEADER_BYTES - 96)
    old[96:100] = crc32c(bytes(old[:96])).to_bytes(4)
    with pytest.raises(UnsupportedVersion, match="format 1"):
        verdict({1: bytes(old)})


# --- what is durable, and what a boot only happens to see (ADR 14) --------------------------------


def test_b17_only_what_a_later_sync_names_is_proven() -> None:
    segment = SegmentBytes()
    first = segment.batch((0, b"named by the next batch"))
    second = segment.batch((0, b"named by nothing"))
    files = {1: segment.blank()}
    found = verdict(files)
    assert found.durable == first
    assert records(files, found.spans) == [b"named by the next batch"]
    assert records(files, found.tail) == [b"named by nothing"]
    for proof in (verdict(files, START, second), verdict(files, second)):
        assert proof.durable == second, "outside evidence and the index prove it too"
        assert proof.tail == []


def test_a_header_names_where_the_log_goes_on_and_supersedes_the_rest() -> None:
    """After a boot that saw an unproven tail: the copy counts, not the place it was found at."""
    first = SegmentBytes(1)
    end = first.batch((0, b"proven"))
    first.batch((0, b"tail"))
    again = SegmentBytes(2, end, carried=b"tail")
    files = {1: first.blank(), 2: again.blank()}
    found = verdict(files)
    assert found.problems == []
    assert records(files, found.spans) == [b"proven"]
    assert records(files, found.tail) == [b"tail"], "nothing proves the copy either, by now"
    assert found.tail[0].segment == 2
    assert found.durable == end
    live = again.batch((0, b"live"))
    again.batch()
    files[2] = again.blank()
    found = verdict(files)
    assert records(files, found.spans) == [b"proven", b"tail", b"live"]
    assert (found.durable, found.tail) == (live, [])


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_copy_cut_short_leaves_the_original_in_force(cut: int) -> None:
    first = SegmentBytes(1)
    end = first.batch((0, b"proven"))
    first.batch((0, b"tail"))
    again = SegmentBytes(2, end, carried=b"tail")
    files = {1: first.blank(), 2: bytes(again.data[:-cut]) + bytes(cut + 100)}
    found = verdict(files)
    assert found.problems == []
    assert replayed(files, found) == [b"proven", b"tail"]
    assert found.tail[0].segment == 1
    # It was whole once: the boot noted that, or went on behind it.
    assert verdict(files, START, Position(2, HEADER_BYTES)).problems != []
    again.batch((0, b"live"))
    damaged = bytearray(again.blank())
    damaged[again.header.carried_end - 1] ^= 1
    assert verdict({**files, 2: bytes(damaged)}).problems != []


def test_superseded_segments_may_have_any_content() -> None:
    """A boot that failed left a segment nobody synced; a power cut may take it or tear it."""
    first = SegmentBytes(1)
    end = first.batch((0, b"proven"))
    first.batch()
    failed = SegmentBytes(2, end, carried=b"tail")
    third = SegmentBytes(3, end, carried=b"tail")
    third.batch()
    for rest in (failed.blank(), bytes(500), bytes(failed.data[:-3]) + bytes(99), b""):
        files = {1: first.blank(), 2: rest, 3: third.blank()}
        found = verdict(files)
        assert found.problems == []
        assert replayed(files, found) == [b"proven", b"tail"]
    assert verdict({1: first.blank(), 3: third.blank()}).problems == []


@pytest.mark.parametrize("left", ["", "half", "header", "zeros", "gone"])
def test_b23_evidence_outside_of_the_file_notices_what_is_gone(left: str) -> None:
    """INV-9: the proofs inside a file go with the file."""
    segment = SegmentBytes()
    end = segment.durable
    for number in range(20):
        end = segment.batch((0, b"acked %d" % number))
    whole = segment.blank()
    cut = {"": 0, "half": len(segment.data) // 2, "header": 64, "zeros": 0, "gone": 0}[left]
    data = whole[:cut] + (bytes(len(whole)) if left == "zeros" else b"")
    files = {} if left == "gone" else {1: data}
    assert verdict({1: whole}, START, end).problems == []
    assert verdict(files, START, end).problems != []
    created = Position(1, HEADER_BYTES)
    noticed = verdict(files, START, created).problems != []
    assert noticed is (left != "half"), "the counter proves the header, not what follows"


def test_evidence_between_segments_of_the_chain_is_a_contradiction() -> None:
    first = SegmentBytes(1)
    end = first.batch((0, b"acked"))
    later = SegmentBytes(5, end)
    files = {1: first.blank(), 5: later.blank()}
    assert verdict(files, START, end).problems == []
    assert verdict(files, START, Position(3, HEADER_BYTES)).problems != []
