"""Which client a stream is of: what it says in the metadata of its call."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.proto.client_ids import CLIENT_ID_BYTES_MAX, CLIENT_ID_KEY
from octavo.runtime.errors import InvalidRequest


def client_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The client's id; empty when it says none. Raises InvalidRequest."""
    for key, value in metadata or ():
        if key == CLIENT_ID_KEY:
            raw = value.encode() if isinstance(value, str) else value
            if len(raw) > CLIENT_ID_BYTES_MAX:
                raise InvalidRequest(
                    f"a client id of {len(raw)} bytes, limit {CLIENT_ID_BYTES_MAX}"
                )
            try:
                return raw.decode()
            except UnicodeDecodeError:
                raise InvalidRequest("a client id that is not UTF-8") from None
    return ""


def check_client_id(client_id: str) -> None:
    """Raise InvalidRequest for what no client can be called."""
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise InvalidRequest(
            f"a client id of {len(client_id.encode())} bytes, limit {CLIENT_ID_BYTES_MAX}"
        )
