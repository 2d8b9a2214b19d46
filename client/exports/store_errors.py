"""What an object store's errors mean: gone, away, refused (ADR 69).

pyarrow tells all of them as OSError with a text. Absent stays FileNotFoundError, for whoever asked
knows what that means; everything else is unknown, never "absent".
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from octavo.runtime.errors import ConfigError, StorageFull, StorageUnavailable

_DENIED = ("ACCESS_DENIED", "AccessDenied", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "403")
_NO_BUCKET = ("NO_SUCH_BUCKET", "NoSuchBucket")


@contextmanager
def typed(place: str) -> Generator[None]:
    """Turn errors of a store into ours, naming the place."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{place}: {error}") from error
        raise away(place, f"{error}") from error


def away(place: str, said: str) -> ConfigError | StorageUnavailable:
    """The error for a store that gave no answer, by what it said."""
    if any(word in said for word in _NO_BUCKET):
        return ConfigError(
            f"{place}: there is no such bucket",
            hint="create the bucket; Octavo creates none",
        )
    if any(word in said for word in _DENIED):
        return StorageUnavailable(
            f"{place}: access denied ({said})",
            hint="look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the role of "
            "this machine, and at what they may do",
        )
    return StorageUnavailable(
        f"{place} cannot be reached now: {said}",
        hint="look at endpoint_override, scheme and region in the URI, and at the network",
    )
