"""What a broker does with the few batches that it opens, because their topic asks for it. Pure.

Another codec (F039), a look at the producer's times (X23), or at the keys (K1). Without Arrow, for
what a broker loads when it starts takes time. See `octavo.proto.batch`.
"""

from __future__ import annotations

from array import array

from octavo.proto.batch import BatchHeader, body_of, full_validity, seal, verify
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptBatch


def recompress(batch: Buffer, codec: int) -> Buffer:
    """The same records under another codec, or uncompressed where it does not shrink them (F039).

    Everything else stays; the crc is computed anew. Takes a while: not for an event loop. Raises
    CorruptBatch, UnsupportedVersion, MessageTooLarge.
    """
    header = verify(batch)
    if header.codec == codec:
        return batch
    return seal(
        [bytes(body_of(batch, header))],
        header.record_count,
        (header.base_timestamp_ms, header.max_timestamp_ms),
        flags=header.flags,
        codec=codec,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        schema_id=header.schema_id,
        marks=header.marks,
    )


def create_times(batch: Buffer, header: BatchHeader) -> array[int]:
    """The times that the producer gave the records of a verified batch; raises CorruptBatch.

    Decompresses the body and looks at nothing else of it.
    """
    size_bytes = 8 * header.record_count
    body = body_of(batch, header)
    if len(body) < size_bytes:
        raise CorruptBatch("batch body ends inside a buffer")
    times = array("q")
    times.frombytes(body[:size_bytes])
    return times


def first_without_key(batch: Buffer, header: BatchHeader) -> int | None:
    """The place in a verified batch of its first record whose key is null; None: all have one.

    Decompresses the body, and looks at one bit of each record. Raises CorruptBatch.
    """
    count = header.record_count
    body = body_of(batch, header)
    start, size = 8 * count, (count + 7) // 8
    bitmap = bytes(body[start : start + size])
    if len(bitmap) < size:
        raise CorruptBatch("batch body ends inside a buffer")
    valid = full_validity(count)[:size]
    if bitmap == valid:
        return None
    missing = int.from_bytes(valid, "little") & ~int.from_bytes(bitmap, "little")
    return (missing & -missing).bit_length() - 1 if missing else None
