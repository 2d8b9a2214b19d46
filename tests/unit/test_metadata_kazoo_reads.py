"""ZooKeeper's multiRead on the wire: what is asked, and which answers are none."""

from __future__ import annotations

import struct

import pytest
from kazoo.exceptions import MarshallingError, NoAuthError, NoNodeError

from octavo.metadata.kazoo_reads import ReadValue, read_children, read_values

END = struct.pack("!i?i", -1, True, -1)
KEYS = ["/a", "/b/ä"]


def stored(value: bytes | None, *, version: int = 7, czxid: int = 1 << 40) -> bytes:
    """The part of an answer that has a value; statistics as ZooKeeper lists them."""
    size = -1 if value is None else len(value)
    stat = struct.pack("!qqqqiiiqiiq", czxid, 2, 3, 4, version, 6, 7, 8, 9, 10, 11)
    return struct.pack("!i?ii", 4, False, 0, size) + (value or b"") + stat


def children(*names: str) -> bytes:
    """The part of an answer that has names."""
    listed = b"".join(struct.pack("!i", len(name.encode())) + name.encode() for name in names)
    return struct.pack("!i?ii", 8, False, 0, len(names)) + listed


def refused(code: int) -> bytes:
    """The part of an answer that has an error."""
    return struct.pack("!i?ii", -1, False, code, code)


def test_the_request_is_a_list_of_reads_without_watches() -> None:
    for kind, request in ((4, read_values(KEYS)), (8, read_children(KEYS))):
        assert request.type == 22
        parts = [
            struct.pack("!i?ii", kind, False, -1, len(key.encode())) + key.encode() + b"\x00"
            for key in KEYS
        ]
        assert request.serialize() == b"".join(parts) + END


def test_each_part_is_answered_for_itself() -> None:
    before = b"header"
    answer = before + stored(b"value") + refused(-101) + stored(None) + refused(-102) + END
    found = read_values(["/a", "/b", "/c", "/d"]).deserialize(answer, len(before))
    assert found[0] == ReadValue(b"value", 7, 1 << 40)
    assert isinstance(found[1], NoNodeError)
    assert found[2] == ReadValue(b"", 7, 1 << 40)
    assert isinstance(found[3], NoAuthError)


def test_names_of_children_are_read_as_they_come() -> None:
    answer = children("b", "a", "ä") + refused(-101) + children() + END
    found = read_children(["/a", "/b", "/c"]).deserialize(answer, 0)
    assert (found[0], found[2]) == (["b", "a", "ä"], [])
    assert isinstance(found[1], NoNodeError)
    for size in range(len(answer)):
        with pytest.raises(MarshallingError):
            read_children(["/a", "/b", "/c"]).deserialize(answer[:size], 0)
    with pytest.raises(MarshallingError):
        read_children(["/a"]).deserialize(children("a").replace(b"a", b"\xff") + END, 0)


WHOLE = stored(b"v") * 2 + END
NO_ANSWERS = [
    *(WHOLE[:size] for size in range(len(WHOLE))),
    stored(b"v") + END,
    stored(b"v") * 3 + END,
    refused(-4711) + stored(b"v") + END,
    struct.pack("!i?i", 8, False, 0) + bytes(4) + stored(b"v") + END,
    struct.pack("!i?ii", 4, False, 0, 1 << 30) + stored(b"v") + END,
]


def test_m3_what_is_no_answer_is_refused_as_one_that_was_lost() -> None:
    """Planted: an error of Python's own, which nobody hands to whoever waits."""
    assert len(read_values(KEYS).deserialize(WHOLE, 0)) == len(KEYS)
    for answer in NO_ANSWERS:
        with pytest.raises(MarshallingError):
            read_values(KEYS).deserialize(answer, 0)
