"""Many values in one request: ZooKeeper's multiRead (3.6), which kazoo does not have.

On the wire (opcode 22) it is a list of parts that ends with a header of type -1; each part is a
header (type, whether this is the end, error) and what a request or an answer of that type is alone.
Each part is answered for itself: one missing key says nothing of the others. A server that does not
know the opcode answers UNIMPLEMENTED and closes the connection; the session lives on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, MarshallingError, ZookeeperError
from kazoo.handlers.threading import AsyncResult

MULTI_READ = 22
_GET_DATA = 4
_ERROR = -1

_HEADER = struct.Struct("!i?i")
"""Type of the part, whether the list ends here, error."""
_END = _HEADER.pack(-1, True, -1)
_PART = _HEADER.pack(_GET_DATA, False, -1)
_INT = struct.Struct("!i")
_STAT = struct.Struct("!q24xi32x")
"""Of a znode's statistics what a `Version` is made of: creating transaction and version."""


class ReadValue(NamedTuple):
    """What is stored at a key."""

    value: bytes
    version: int
    czxid: int


class ReadMany:
    """A request for the values of `keys`, in the form in which kazoo takes requests."""

    type = MULTI_READ

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def serialize(self) -> bytes:
        """The body of the request."""
        parts: list[bytes] = []
        for key in self._keys:
            name = key.encode()
            parts += (_PART, _INT.pack(len(name)), name, b"\x00")  # no watch
        return b"".join(parts) + _END

    def deserialize(self, data: bytes, offset: int) -> list[ReadValue | ZookeeperError]:
        """The answers, in order of the keys; raises MarshallingError for what is none."""
        try:
            found = _parts(data, offset)
        except (struct.error, KeyError) as error:
            raise MarshallingError(f"not an answer to {self}: {error!r}") from error
        if len(found) != len(self._keys):
            raise MarshallingError(f"{len(found)} answers to {self}")
        return found

    def __repr__(self) -> str:
        return f"ReadMany({len(self._keys)} keys)"


def read_many_async(
    client: KazooClient, keys: Sequence[str]
) -> AsyncResult[list[ReadValue | ZookeeperError]]:
    """Send the request; the result has an answer for each key, in their order."""
    result: AsyncResult[list[ReadValue | ZookeeperError]] = client.handler.async_result()
    client._call(ReadMany(keys), result)  # as kazoo's own transactions are sent
    return result


def _parts(data: bytes, offset: int) -> list[ReadValue | ZookeeperError]:
    found: list[ReadValue | ZookeeperError] = []
    while True:
        kind, is_end, error = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        if is_end:
            return found
        if kind == _GET_DATA and not error:
            size = max(0, _INT.unpack_from(data, offset)[0])  # -1: nothing, which is empty
            offset += _INT.size
            value = data[offset : offset + size]
            czxid, version = _STAT.unpack_from(data, offset + size)
            found.append(ReadValue(value, version, czxid))
            offset += size + _STAT.size
        elif kind == _ERROR:
            offset += _INT.size  # the error again
            if error not in EXCEPTIONS:
                raise KeyError(f"error {error}")
            found.append(EXCEPTIONS[error]())
        else:
            raise KeyError(f"a part of type {kind} with error {error}")
