"""Writing objects of S3 whole or not at all, and exclusively: what `pyarrow.fs` does not offer.

Its streams are closed by an error, and closing them stores the part that was written. Here each
object is one PUT with a length. With `If-None-Match: *` (AWS since August 2024, MinIO and others)
the store refuses it when there is such an object: so a manifest version has one writer (spec spark
§5, ADR 69). botocore sends them; it finds credentials where pyarrow does: in the environment, in
`~/.aws`, in the role of the machine.
"""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, TYPE_CHECKING

from octavo.client.exports.store_errors import away
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

CONFLICTS_MAX = 10
"""Answers "somebody else is writing it just now" before the outcome counts as unknown."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
CLIENTS_KEPT = 16
"""Of a process, each with its pool of connections."""
_ATTEMPTS = 3
_EXISTS = 412
_CONFLICT = 409
_NOT_KNOWN = (400, 501)
"""What stores say to a condition that they do not know, unless they ignore it."""


class S3Writer:
    """Writes below one prefix of a bucket. Blocking; one call at a time for each object.

    Raises StorageUnavailable where the outcome is not known, ConfigError for a bucket that does not
    exist, a store that does not obey the condition, and a machine without botocore.
    """

    def __init__(self, bucket: str, prefix: str, endpoint: str | None, region: str | None) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = endpoint
        self._region = region
        self._client: BaseClient | None = None
        self._proven = False

    @classmethod
    def of(cls, root: str) -> S3Writer | None:
        """The writer for a URI; None where there is none for its scheme."""
        parts = urllib.parse.urlsplit(root)
        if parts.scheme != "s3":
            return None
        options = dict(urllib.parse.parse_qsl(parts.query))
        endpoint = options.get("endpoint_override")
        if endpoint is not None and "://" not in endpoint:
            endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
        prefix = urllib.parse.unquote(parts.path).strip("/")
        return cls(parts.netloc, f"{prefix}/" if prefix else "", endpoint, options.get("region"))

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; False when there is one already.

        True means that this call created it, but False may be this call's own object, when a reply
        was lost and the request repeated: the caller looks at what is there (M-3).
        """
        if not self._proven:
            self._prove(f"{name.rpartition('/')[0]}/.probe-{SystemEntropy().token().hex()}")
            self._proven = True
        return self._create(name, data)

    def put(self, name: str, data: bytes | pathlib.Path) -> None:
        """Write an object, whether or not it existed: bytes, or a file that is not loaded."""
        if isinstance(data, bytes):
            self._put(name, data)
            return
        with open(data, "rb") as file:
            self._put(name, file)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        client = self._connected()
        with self._typed(name):
            client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def _put(self, name: str, body: bytes | IO[bytes]) -> None:
        client = self._connected()
        with self._typed(name):
            client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=body)

    def _create(self, name: str, data: bytes) -> bool:
        client = self._connected()
        from botocore.exceptions import ClientError

        for _ in range(CONFLICTS_MAX):
            try:
                with self._typed(name, expected=(_EXISTS, _CONFLICT, *_NOT_KNOWN)):
                    client.put_object(
                        Bucket=self._bucket,
                        Key=self._prefix + name,
                        Body=data,
                        IfNoneMatch="*",
                    )
            except ClientError as error:
                status = _status(error)
                if status == _EXISTS:
                    return False
                if status in _NOT_KNOWN:
                    raise self._disobeys(f"{error}") from error
                continue
            return True
        raise away(self._place(name), f"{CONFLICTS_MAX} conflicts with other writers")

    def _prove(self, name: str) -> None:
        """Raise ConfigError unless the store refuses to create the same object twice.

        Stores that ignore the condition would let manifests be overwritten.
        """
        created, again = self._create(name, b""), self._create(name, b"")
        self.remove(name)
        if not created or again:
            raise self._disobeys("it created the same object twice")

    def _disobeys(self, how: str) -> ConfigError:
        return ConfigError(
            f"the store of bucket {self._bucket} does not obey If-None-Match: {how}",
            hint="export to a store that does (S3, a current MinIO), or to a folder",
        )

    @contextmanager
    def _typed(self, name: str, expected: tuple[int, ...] = ()) -> Generator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            if _status(error) in expected:
                raise
            raise away(self._place(name), f"{error}") from error
        except BotoCoreError as error:
            raise away(self._place(name), f"{error}") from error

    def _place(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def _connected(self) -> BaseClient:
        if self._client is None:
            self._client = _client_of(self._endpoint, self._region)
        return self._client


@lru_cache(maxsize=CLIENTS_KEPT)
def _client_of(endpoint: str | None, region: str | None) -> BaseClient:
    """A client, which threads may share; making one takes a third of a second of a processor."""
    try:
        from botocore.config import Config
        from botocore.session import get_session
    except ModuleNotFoundError as error:
        raise ConfigError(
            "writing to s3:// needs botocore", hint="pip install 'octavo[s3]'"
        ) from error
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    return get_session().create_client(
        "s3", endpoint_url=endpoint, region_name=region, config=config
    )


def _status(error: ClientError) -> int | None:
    """The HTTP status that the store answered with."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
