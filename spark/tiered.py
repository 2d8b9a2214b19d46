"""Segments of a cluster that lie in exported files of their topic's tiering (F088, ADR 70).

The planner reads the manifest where the broker says it is, and workers read the files themselves:
neither asks a broker or a bookie for such records. Driver and workers must see the brokers'
`tier_root` under the same name; one that does not fails, and says what it misses.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from octavo.client.exports.log_view import TopicLog
from octavo.client.exports.manifest import Manifest, ManifestState
from octavo.client.exports.tree import LocalTree
from octavo.proto.segments import Segment
from octavo.runtime.errors import ConfigError, StorageFailed

MANIFESTS_MAX = 64
"""Trees whose state stays in memory: a stream plans again and again."""

_manifests: OrderedDict[str, Manifest] = OrderedDict()
_lock = threading.Lock()


def tier_state(log: TopicLog) -> ManifestState | None:
    """What files hold of a topic; None when everything is on bookies.

    Raises ConfigError when its tree is not to be seen from here, or not as far as it was listed.
    """
    versions = [
        (one.object_version or 0, one)
        for part in log.partitions.values()
        for one in part.segments
        if not one.in_ledger
    ]
    if not versions:
        return None
    version, segment = max(versions, key=lambda found: found[0])
    if not log.tier_tree:
        raise _unseen(log, segment, "the broker was not told of a tier_root")
    with _lock:
        manifest = _manifests.setdefault(
            log.tier_tree, Manifest(LocalTree(log.tier_tree), log.topic)
        )
        _manifests.move_to_end(log.tier_tree)
        while len(_manifests) > MANIFESTS_MAX:
            _manifests.popitem(last=False)
        try:
            state = manifest.load()
        except StorageFailed as error:  # less than was there before
            raise _unseen(log, segment, error.cause) from error
        except OSError as error:
            raise _unseen(log, segment, str(error)) from error
    if state.version < version:
        raise _unseen(log, segment, f"{log.tier_tree} ends at version {state.version} here")
    return state


def _unseen(log: TopicLog, segment: Segment, why: str) -> ConfigError:
    return ConfigError(
        f"offset {segment.base_offset} of topic {log.topic!r} is in exported files, and these "
        f"cannot be read here: {why}",
        hint="driver and workers must see the brokers' tier_root under the same name",
        topic=log.topic,
    )
