"""The file in `tier_root` that says whose tier it is (ADR 75), like a bookie's cookie. Blocking.

    TIER_ROOT/_tier.json       {"format_version": 1, "cluster_id": …, "tier_id": …}

A file system that is not mounted looks like an empty folder, and that of another cluster like a
full one: both lack the marker that is looked for. It is written once, durably, and never changed.
It has no checksum, so that a person can write it again: a damaged one names another tier, or none.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple, cast

from octavo.client.exports.tree import LocalTree
from octavo.runtime.errors import ConfigError, OctavoError, StorageFailed, UnsupportedVersion

MARKER = "_tier.json"
"""No topic's folder begins with an underscore."""
FORMAT_VERSION = 1


class TierMark(NamedTuple):
    """Whose tier a folder is."""

    cluster_id: str
    tier_id: str
    """Another one when a cluster's tier was given up and begun anew."""

    def text(self) -> str:
        """As the file has it."""
        return json.dumps({"format_version": FORMAT_VERSION, **self._asdict()})


def read_mark(tier_root: str) -> TierMark | None:
    """The marker, None when there is none in a folder that is there.

    Raises StorageFailed when there is no folder, or it cannot be read; UnsupportedVersion.
    """
    if not os.path.isdir(tier_root):
        raise StorageFailed(
            f"tier_root {tier_root} is no folder", hint="create it, or mount what holds it"
        )
    with typed(tier_root):
        data = LocalTree(tier_root).read(MARKER)
    return None if data is None else _parsed(tier_root, data)


def make_mark(tier_root: str, mark: TierMark) -> TierMark | None:
    """Make a marker, durably, unless there is one; the one that is there then."""
    with typed(tier_root):
        LocalTree(tier_root).create_exclusive(MARKER, mark.text().encode())
    return read_mark(tier_root)


def check_mark(tier_root: str, found: TierMark | None, wanted: TierMark) -> None:
    """Raise ConfigError for a folder of another cluster, StorageFailed for one that is not the
    tier `wanted`. An empty `tier_id` is wanted by nobody who knows his tier: any is right."""
    if found is None:
        raise StorageFailed(
            f"tier_root {tier_root} does not hold this cluster's tier: {MARKER} is not there",
            hint=f"mount what holds it; if only {MARKER} was lost, write it: {wanted.text()}",
        )
    if found.cluster_id != wanted.cluster_id:
        raise ConfigError(
            f"tier_root {tier_root} belongs to cluster {found.cluster_id}, and this is cluster "
            f"{wanted.cluster_id}",
            hint="give this cluster a folder of its own; what lies there is left alone",
        )
    if wanted.tier_id and found.tier_id != wanted.tier_id:
        raise StorageFailed(
            f"tier_root {tier_root} holds tier {found.tier_id} of this cluster, and its files lie "
            f"in tier {wanted.tier_id}",
            hint="is tier_root the same folder on every broker?",
        )


def _parsed(tier_root: str, data: bytes) -> TierMark:
    try:
        body = cast("dict[str, object]", json.loads(data))
        tier_id = uuid.UUID(str(body["tier_id"])).hex
        version, mark = body["format_version"], TierMark(str(body["cluster_id"]), tier_id)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageFailed(
            f"{tier_root}/{MARKER} cannot be read: {error!r}",
            hint="which cluster the folder belongs to is not known; nothing is done there",
        ) from error
    if version != FORMAT_VERSION:
        raise UnsupportedVersion(f"{tier_root}/{MARKER} has format version {version!r}")
    return mark


@contextmanager
def typed(root: str) -> Generator[None]:
    """Errors of the file system below `root` are StorageFailed."""
    try:
        yield
    except OctavoError:
        raise
    except OSError as error:
        raise StorageFailed(
            f"the exported tree {root} cannot be used: {error}",
            hint="look at the file system of tier_root",
        ) from error
