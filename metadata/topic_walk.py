"""All topics, one after the other, in bounded memory: for tools that look at everything.

A record that cannot be read is given as its error and not left out (M-7): whoever judges a cluster
must know that there is a topic of which it knows nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from octavo.metadata.paths import Paths
from octavo.metadata.scanning import scan_all
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import Topic
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion


class WalkedTopic(NamedTuple):
    """A topic, or why its record cannot be read."""

    folded_name: str
    topic: Topic | None
    error: str = ""


async def walk_topics(store: MetadataStore, paths: Paths) -> AsyncIterator[WalkedTopic]:
    """Every topic, those being deleted included; not a snapshot. Raises MetadataUnavailable.

    Holds what one request gives of a directory at a time (L-1).
    """
    await store.barrier()
    for shard in await store.children(paths.topics):
        async for name, found in scan_all(store, f"{paths.topics}/{shard}"):
            try:
                if isinstance(found, MetadataCorrupt):
                    raise found
                yield WalkedTopic(name, Topic.from_bytes(found.value))
            except (MetadataCorrupt, UnsupportedVersion) as error:
                yield WalkedTopic(name, None, error.cause)
