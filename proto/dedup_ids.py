"""Ids that applications give to records so that each is kept once (X14).

A record with one travels alone in its batch, which carries the mark DEDUP and no producer id; the
id is the value of its header `dedup_id`. What is remembered of it is a digest of 16 bytes: by a
broker in memory, in snapshots, and read again from the batches behind the newest snapshot.
"""

from __future__ import annotations

import hashlib

from octavo.proto.batch import BatchHeader, BatchMarks, decode_rows
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvalidRecord

ID_HEADER = "dedup_id"
"""Name of the record header that holds the id."""
ID_BYTES_MAX = 128
DIGEST_BYTES = 16


def digest_of(dedup_id: bytes) -> bytes:
    """What is remembered of an id: blake2b, so that nobody can find two ids with the same."""
    return hashlib.blake2b(dedup_id, digest_size=DIGEST_BYTES).digest()


def is_marked(header: BatchHeader) -> bool:
    """Whether the batch asks to be kept once."""
    return bool(header.marks & BatchMarks.DEDUP)


def read_digest(batch: Buffer) -> bytes:
    """The digest of a marked batch's id; opens its body.

    Raises InvalidRecord unless it holds one record with one id of 1 to ID_BYTES_MAX bytes, and
    what `decode_rows` raises.
    """
    rows = decode_rows(batch)
    headers = rows.headers[0] if rows.headers else []
    ids = [value for name, value in headers if name == ID_HEADER]
    if rows.header.record_count != 1 or len(ids) != 1:
        raise InvalidRecord(
            f"a batch to be kept once holds one record with one header {ID_HEADER!r}, not "
            f"{rows.header.record_count} records and {len(ids)} of them"
        )
    (found,) = ids
    if found is None or not 0 < len(found) <= ID_BYTES_MAX:
        size = "no value" if found is None else f"{len(found)} bytes"
        raise InvalidRecord(f"{ID_HEADER} must have 1 to {ID_BYTES_MAX} bytes, it has {size}")
    return digest_of(found)
