"""What a framed connection asks of what carries its bytes, and of who makes it.

    Transport   one end of an open connection    asyncio's and uvloop's sockets, MemoryTransport
    Network     dials and listens                SocketNetwork (endpoints.py), MemoryNetwork

A protocol is told `connection_made` once, then what it receives, then `connection_lost` once.
Neither of the last two comes from inside a call of its own. One contract suite judges them
(`tests/contract/test_framed.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from octavo.runtime.checksum import Buffer

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BufferedProtocol)
MakeProtocol = Callable[[], asyncio.BufferedProtocol]


class Transport(Protocol):
    """One end of an open connection; all calls on the loop."""

    def write(self, data: Buffer) -> None:
        """Send bytes after those sent before; dropped when the transport is closing."""
        ...

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:
        """Send buffers in order."""
        ...

    def get_write_buffer_size(self) -> int:
        """Bytes that were sent and that the network has not taken yet."""
        ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Above `high` bytes the protocol is asked to pause, at `low` or less to go on."""
        ...

    def is_reading(self) -> bool:
        """True if what arrives is handed to the protocol."""
        ...

    def pause_reading(self) -> None:
        """Leave what arrives where it is, the end included; the peer's buffer fills up."""
        ...

    def resume_reading(self) -> None:
        """Hand over again."""
        ...

    def is_closing(self) -> bool:
        """True from `close()`, `abort()` or the end of the connection on."""
        ...

    def close(self) -> None:
        """Receive nothing more; end when everything sent was taken by the network."""
        ...

    def abort(self) -> None:
        """End at once; what the network has not taken is dropped."""
        ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername`: (host, port) of the other end."""
        ...


class Listening(Protocol):
    """What takes connections, until `close`."""

    @property
    def port(self) -> int:
        """Where it listens."""
        ...

    async def close(self) -> None:
        """Take no more connections; those that were accepted go on."""
        ...


class Network(Protocol):
    """Makes framed connections."""

    async def dial(
        self, address: str, protocol: Callable[[], AnyProtocol], what: str
    ) -> AnyProtocol:
        """Connect to `address`; the protocol made for it, which has met its transport.

        Raises OSError, and ConfigError where the address, named `what`, is wrong. The caller bounds
        the time it takes.
        """
        ...

    async def listen(self, protocol: MakeProtocol, host: str, port: int) -> Listening:
        """Make a protocol for each connection to `host`:`port`, 0 for a free one.

        Raises OSError.
        """
        ...
