"""Every key of the metadata store in one place (spec/ledger.md §2.4).

Ledgers, topics and partitions are spread over directories so that none exceeds 10,000 children
(L-1). A topic is stored under its name with "." folded to "_", so that two names which differ
only there collide on creation, atomically (F015).
"""

from __future__ import annotations

import uuid

from octavo.proto.sink_staging import sink_digest, split_sink_digest
from octavo.runtime.checksum import crc32c
from octavo.runtime.ids import LedgerId

_LEDGER_DIGITS = 19
_LEDGER_SPLIT = (3, 4, 4, 4, 4)
LEDGER_LEVELS = len(_LEDGER_SPLIT)
"""Depth of the ledger tree below `ledgers`."""


def _split_ledger_id(ledger_id: int) -> str:
    if not 0 <= ledger_id < 1 << 63:
        raise ValueError(f"not a ledger id: {ledger_id}")
    digits = f"{ledger_id:0{_LEDGER_DIGITS}d}"
    parts: list[str] = []
    start = 0
    for width in _LEDGER_SPLIT:
        parts.append(digits[start : start + width])
        start += width
    return "/".join(parts)


class Paths:
    """Keys below the root of one cluster, e.g. `/octavo`."""

    def __init__(self, root: str) -> None:
        self.root = "/" + root.strip("/")
        self.instance_id = f"{self.root}/INSTANCEID"
        self.idgen = f"{self.root}/idgen"
        self.ledgers = f"{self.root}/L"
        self.bookies_rw = f"{self.root}/bookies/rw"
        self.bookies_ro = f"{self.root}/bookies/ro"
        self.cookies = f"{self.root}/cookies"
        self.ledgers_deleted = f"{self.root}/ledgers-deleted"
        """Counter: deletions of ledgers that were begun, in the life of the cluster (6.14)."""
        self.restoring = f"{self.root}/restoring"
        """A copy is being put back, or was in part (ADR 51): no server starts."""
        self.restored = f"{self.root}/restored"
        """The last time that a copy was put back."""
        self.ur = f"{self.root}/ur"
        self.under_replicated = f"{self.root}/ur/ledgers"
        self.repair_locks = f"{self.root}/ur/locks"
        self.repairs_disabled = f"{self.root}/ur/disabled"
        self.auditor = f"{self.root}/ur/auditor"
        self.audited = f"{self.root}/ur/audited"
        """When the last whole pass of an auditor ended, and what it saw."""
        self.bookies_away = f"{self.root}/ur/away"
        self.bookie_holds = f"{self.root}/bookies/held"
        self.brokers = f"{self.root}/brokers"
        self.drained_root = f"{self.root}/drained"
        self.leaving_root = f"{self.root}/leaving"
        self.leader = f"{self.root}/leader"
        self.bundles = f"{self.root}/bundles"
        self.loads = f"{self.root}/loads"
        self.placement = f"{self.root}/placement"
        """Bundles that were moved by decision, and where to."""
        self.quotas = f"{self.root}/quotas"
        """What single clients may use of each broker."""
        self.topics = f"{self.root}/topics"
        self.deletions = f"{self.root}/deletions"
        self.partitions_root = f"{self.root}/partitions"
        self.producer_ids = f"{self.root}/producer-ids"
        self.sinks = f"{self.root}/sinks"
        self.tier = f"{self.root}/tier"
        """Which tier is the cluster's (F088)."""

    def idgen_epoch(self, epoch: int) -> str:
        """The counter from which ids of `epoch` are drawn (ID-1)."""
        return f"{self.idgen}/{epoch}"

    def ledger(self, ledger_id: LedgerId) -> str:
        """The ledger's record: the id as 19 decimal digits split 3-4-4-4-4."""
        return f"{self.ledgers}/{_split_ledger_id(ledger_id)}"

    def ledger_id_of(self, key: str) -> LedgerId:
        """The id whose record is at `key`; raises ValueError."""
        prefix = self.ledgers + "/"
        parts = key.removeprefix(prefix).split("/")
        widths = tuple(len(part) for part in parts)
        if not key.startswith(prefix) or widths != _LEDGER_SPLIT:
            raise ValueError(f"not the key of a ledger: {key!r}")
        digits = "".join(parts)
        if not (digits.isascii() and digits.isdecimal()) or int(digits) >= 1 << 63:
            raise ValueError(f"not the key of a ledger: {key!r}")
        return LedgerId(int(digits))

    def repair_mark(self, ledger_id: LedgerId) -> str:
        """Says that the ledger lacks copies; split as its record is (L-1)."""
        return f"{self.under_replicated}/{_split_ledger_id(ledger_id)}"

    def repair_lock(self, ledger_id: LedgerId) -> str:
        """Held by the worker that repairs the ledger (A-4)."""
        return f"{self.repair_locks}/{ledger_id}"

    def bookie_away(self, bookie_id: str) -> str:
        """Since when a bookie is not registered (A-1)."""
        return f"{self.bookies_away}/{bookie_id}"

    def bookie_hold(self, bookie_id: str) -> str:
        """What an operator decided about one incarnation of a bookie."""
        return f"{self.bookie_holds}/{bookie_id}"

    def bookie_rw(self, bookie_id: str) -> str:
        """Registration of a writable bookie."""
        return f"{self.bookies_rw}/{bookie_id}"

    def bookie_ro(self, bookie_id: str) -> str:
        """Registration of a read-only bookie."""
        return f"{self.bookies_ro}/{bookie_id}"

    def cookie(self, bookie_id: str) -> str:
        """Persistent identity of a bookie (6.11)."""
        return f"{self.cookies}/{bookie_id}"

    def broker(self, broker_id: str) -> str:
        """Registration of a broker."""
        return f"{self.brokers}/{broker_id}"

    def drained(self, broker_id: str) -> str:
        """Says that an operator drained the broker."""
        return f"{self.drained_root}/{broker_id}"

    def leaving(self, broker_id: str) -> str:
        """Says that the broker is about to stop; ephemeral."""
        return f"{self.leaving_root}/{broker_id}"

    def sink(self, sink_id: str) -> str:
        """What a sink decided; ids are any text, so the key is their digest."""
        return self.sink_of_digest(sink_digest(sink_id))

    def sink_of_digest(self, digest: str) -> str:
        """As `sink`, by `sink_staging.sink_digest` of its id."""
        directory, name = split_sink_digest(digest)
        return f"{self.sinks}/{directory}/{name}"

    def load(self, broker_id: str) -> str:
        """What the broker says of its load; ephemeral."""
        return f"{self.loads}/{broker_id}"

    def bundle(self, number: int) -> str:
        """Ownership of one bundle."""
        return f"{self.bundles}/{number}"

    def topic(self, name: str) -> str:
        """Record of the topic; names that collide share a key (F015)."""
        folded = fold_topic_name(name)
        return f"{self.topics}/{crc32c(folded.encode()) & 0xFF:02x}/{folded}"

    def deletion(self, topic_id: uuid.UUID) -> str:
        """Says that a deletion of this topic has begun; its value is the topic's name."""
        return f"{self.deletions}/{topic_id.hex}"

    def partitions(self, topic_id: uuid.UUID) -> str:
        """Directory of a topic's partition records."""
        return f"{self.partitions_root}/{topic_id.hex[:2]}/{topic_id.hex}"

    def partition(self, topic_id: uuid.UUID, partition: int) -> str:
        """The partition's list of segments (ML-1)."""
        return f"{self.partitions(topic_id)}/{partition}"


def fold_topic_name(name: str) -> str:
    """The form in which two colliding names are equal."""
    return name.replace(".", "_")
