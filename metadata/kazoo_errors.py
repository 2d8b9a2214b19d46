"""What kazoo's errors mean: each is one of ours, and a lost reply is never a refusal (M-3)."""

from __future__ import annotations

import logging
from typing import TypeVar

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZookeeperError,
)

from octavo.runtime.errors import (
    ConfigError,
    IllegalStateError,
    KeyExists,
    KeyMissing,
    MetadataUnavailable,
    OctavoError,
    UnknownOutcome,
    VersionConflict,
)

_WRITES = frozenset({"create", "create_and_put", "put", "delete", "fetch_add"})
T = TypeVar("T")
_log = logging.getLogger("octavo.metadata.zookeeper")


def translated(operation: str, error: KazooException, hosts: str) -> OctavoError:
    """Our error for what kazoo says of `operation` at the servers `hosts`."""
    if isinstance(error, NoNodeError):
        return KeyMissing(f"{operation}: the key does not exist")
    if isinstance(error, NodeExistsError):
        return KeyExists(f"{operation}: the key exists")
    if isinstance(error, BadVersionError):
        return VersionConflict(f"{operation}: the key has another version")
    if isinstance(error, NotEmptyError):
        return VersionConflict(f"{operation}: the key has children")
    if isinstance(error, NoChildrenForEphemeralsError):
        return IllegalStateError(f"{operation}: an ephemeral key cannot have children")
    if isinstance(error, NoAuthError | AuthFailedError):
        return ConfigError(f"{operation}: ZooKeeper refused our credentials")
    if isinstance(error, ConnectionClosedError):
        return MetadataUnavailable(f"{operation}: the store was closed")
    _log.info("%s lost its reply: %r", operation, error)
    return lost(operation, type(error).__name__, hosts)


def said(operation: str, answer: T | ZookeeperError, hosts: str) -> T | None:
    """What one part of an answer says of its key; None: it does not exist. Raises other errors."""
    if isinstance(answer, NoNodeError):
        return None
    if isinstance(answer, ZookeeperError):
        raise translated(operation, answer, hosts)
    return answer


def lost(operation: str, why: str, hosts: str) -> UnknownOutcome | MetadataUnavailable:
    """The reply did not come: a write may have happened (M-3)."""
    kind = UnknownOutcome if operation in _WRITES else MetadataUnavailable
    return kind(f"the reply of ZooKeeper at {hosts} to {operation} was lost ({why})", address=hosts)
