"""How a client says who it is: in the metadata of its produce and fetch calls."""

from __future__ import annotations

CLIENT_ID_KEY = "octavo-client-id-bin"
"""gRPC carries values of keys with this end as bytes."""
CLIENT_ID_BYTES_MAX = 200
"""Of a client id as UTF-8."""
