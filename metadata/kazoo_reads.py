"""Many reads in one request: ZooKeeper's multiRead (3.6), which kazoo does not have.

On the wire (opcode 22) it is a list of parts that ends with a header of type -1; each part is a
header (type, whether this is the end, error) and what a request or an answer of that type is alone.
Each part is answered for itself: one missing key says nothing of the others. A server that does not
know the opcode answers UNIMPLEMENTED and closes the connection; the session lives on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, MarshallingError, ZookeeperError
from kazoo.handlers.threading import AsyncResult

T = TypeVar("T")

MULTI_READ = 22
_GET_DATA, _GET_CHILDREN = 4, 8
_ERROR = -1

_HEADER = struct.Struct("!i?i")
"""Type of the part, whether the list ends here, error."""
_END = _HEADER.pack(-1, True, -1)
_INT = struct.Struct("!i")
_STAT = struct.Struct("!q24xi32x")
"""Of a znode's statistics what a `Version` is made of: creating transaction and version."""


class ReadValue(NamedTuple):
    """What is stored at a key."""

    value: bytes
    version: int
    czxid: int


class ReadMany(Generic[T]):
    """A request about `keys`, in the form in which kazoo takes requests; `kind` is of its parts."""

    type = MULTI_READ

    def __init__(
        self, kind: int, keys: Sequence[str], take: Callable[[bytes, int], tuple[T, int]]
    ) -> None:
        self._kind = kind
        self._keys = keys
        self._take = take

    def serialize(self) -> bytes:
        """The body of the request."""
        header = _HEADER.pack(self._kind, False, -1)
        parts: list[bytes] = []
        for key in self._keys:
            name = key.encode()
            parts += (header, _INT.pack(len(name)), name, b"\x00")  # no watch
        return b"".join(parts) + _END

    def deserialize(self, data: bytes, offset: int) -> list[T | ZookeeperError]:
        """The answers, in order of the keys; raises MarshallingError for what is none."""
        try:
            found = self._parts(data, offset)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise MarshallingError(f"not an answer to {self}: {error!r}") from error
        if len(found) != len(self._keys):
            raise MarshallingError(f"{len(found)} answers to {self}")
        return found

    def _parts(self, data: bytes, offset: int) -> list[T | ZookeeperError]:
        found: list[T | ZookeeperError] = []
        while True:
            kind, is_end, error = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if is_end:
                return found
            if kind == self._kind and not error:
                value, offset = self._take(data, offset)
                found.append(value)
            elif kind == _ERROR:
                offset += _INT.size  # the error again
                if error not in EXCEPTIONS:
                    raise KeyError(f"error {error}")
                found.append(EXCEPTIONS[error]())
            else:
                raise KeyError(f"a part of type {kind} with error {error}")

    def __repr__(self) -> str:
        return f"ReadMany({len(self._keys)} keys)"


def read_values(keys: Sequence[str]) -> ReadMany[ReadValue]:
    """What is stored at each."""
    return ReadMany(_GET_DATA, keys, _value)


def read_children(keys: Sequence[str]) -> ReadMany[list[str]]:
    """The names below each, in no order."""
    return ReadMany(_GET_CHILDREN, keys, _names)


def ask_async(client: KazooClient, request: ReadMany[T]) -> AsyncResult[list[T | ZookeeperError]]:
    """Send the request; the result has an answer for each key, in their order."""
    result: AsyncResult[list[T | ZookeeperError]] = client.handler.async_result()
    client._call(request, result)  # as kazoo's own transactions are sent
    return result


def _value(data: bytes, offset: int) -> tuple[ReadValue, int]:
    value, offset = _bytes(data, offset)
    czxid, version = _STAT.unpack_from(data, offset)
    return ReadValue(value, version, czxid), offset + _STAT.size


def _names(data: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(data, offset)
    offset += _INT.size
    names: list[str] = []
    for _ in range(count):
        name, offset = _bytes(data, offset)
        names.append(name.decode())
    return names, offset


def _bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    size = max(0, _INT.unpack_from(data, offset)[0])  # -1: nothing, which is empty
    offset += _INT.size
    return data[offset : offset + size], offset + size
