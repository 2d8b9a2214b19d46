"""Where the exported tree of a topic lies below the brokers' `tier_root`. Pure."""

from __future__ import annotations

import uuid

from octavo.client.exports.layout import folder_of


def tree_root(tier_root: str, topic: str, topic_id: uuid.UUID) -> str:
    """The root of the tree of one life of a topic; what readers give as `path`."""
    return f"{tier_root.rstrip('/') or '/'}/{folder_of(topic)}-{topic_id.hex}"
