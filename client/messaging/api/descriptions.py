"""What the admin tells: topics, brokers, bookies, ledgers, logs and health, as frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, NamedTuple

from octavo.proto import broker_pb2 as pb
from octavo.proto import records_pb2
from octavo.proto.segments import Segment
from octavo.proto.sink_staging import staging_topic
from octavo.runtime.address import bare_host
from octavo.runtime.errors import BrokerUnavailable


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Who serves a partition; empty names: nobody yet."""

    partition: int
    owner_id: str
    owner_address: str
    decommissioned: bool = False
    """Takes no new records (F027)."""
    removed: bool = False
    """Decommissioned, and empty: groups are not assigned to it."""

    @property
    def state(self) -> str:
        """ "active", "decommissioned" or "removed"."""
        if self.removed:
            return "removed"
        return "decommissioned" if self.decommissioned else "active"


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its settings."""

    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str]
    """What is set of it."""
    created_ms: int
    effective: Mapping[str, str] = field(default_factory=dict[str, str])
    """Every setting as it works, set or by default; empty in a list of topics."""
    warning: str = ""
    """What a change means for its records; empty when it means nothing."""


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A live broker."""

    broker_id: str
    address: str


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """How busy a broker says it is; shares are from 0 to 1."""

    usage: float
    """The larger of the next two: what decides whether bundles move."""
    loop_share: float
    """Of one processor, what its event loop takes."""
    cpu_share: float
    """Of all processors of its machine, what its process takes."""
    bytes_in_per_s: int
    """Of batches that became durable."""
    bytes_out_per_s: int
    """Of batches given to readers."""
    records_in_per_s: int
    partitions: int
    """Open ones."""
    hottest: str = ""
    """The partition with the most to do, such as "orders-3"; empty: none has anything."""
    partition_load_ratio: float = 0.0
    """What that one takes, as a part of all that the broker has to do."""


@dataclass(frozen=True, slots=True)
class FleetBroker:
    """A broker of the cluster; without an address it does not live."""

    broker_id: str
    address: str
    started_ms: int
    bundles: int
    """Hash ranges of partitions that it serves."""
    drained: bool
    """It takes nothing and gives everything away, until it is undrained."""
    leaving: bool
    """It is about to stop."""
    load: BrokerLoad | None = None
    """None: not known at this time, which is not idle."""

    @property
    def state(self) -> str:
        """In one word."""
        if not self.address:
            return "down"
        return "leaving" if self.leaving else "drained" if self.drained else "serving"


@dataclass(frozen=True, slots=True)
class BundleDescription:
    """A hash range of partitions, and which broker has it."""

    bundle: int
    owner_id: str
    """Empty: nobody, until somebody asks for a partition in it."""
    placed_on: str
    """The broker that it was moved to by decision; empty: it goes by hashing."""
    usage: float | None = None
    """Of its owner's capacity, what it takes; None: not known at this time."""


@dataclass(frozen=True, slots=True)
class BookieDescription:
    """A live bookie; `state` is rw or ro."""

    bookie_id: str
    incarnation: str
    wire_address: str
    control_address: str
    state: str
    fault_domain: str = ""
    """Rack or zone as configured; empty: none."""

    @property
    def host(self) -> str:
        """The machine it runs on: two copies of a record do not share one while others take
        records."""
        return bare_host(self.wire_address.rpartition(":")[0]).lower()


@dataclass(frozen=True, slots=True)
class FragmentDescription:
    """A run of entries on one ensemble of `bookie@incarnation`."""

    first_entry: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HolderDescription:
    """What one bookie says about a ledger."""

    bookie_id: str
    incarnation: str
    reachable: bool
    last_add_confirmed: int
    fenced: bool
    error: str


@dataclass(frozen=True, slots=True)
class LedgerDescription:
    """A ledger's metadata; `last_entry` and `length` are None until it is closed."""

    ledger_id: int
    state: str
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[FragmentDescription, ...]
    last_entry: int | None
    length: int | None
    created_ms: int
    degraded: bool
    custom: Mapping[str, str]
    holders: tuple[HolderDescription, ...]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a request to compact a partition did."""

    cleaned_to: int
    """Below it of each key that recurs only the last record is left."""
    records_removed: int
    bytes_before: int
    bytes_after: int
    """Of the closed segments."""


class StoredPart(NamedTuple):
    """Some of the segments of a partition."""

    segments: int
    size_bytes: int
    """One copy of each, as it is in ledgers."""


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A partition's segments and where they are stored."""

    topic: str
    partition: int
    log_start: int
    high_watermark: int
    owner_epoch: int
    segments: tuple[Segment, ...]
    """In offset order; an open one can be read up to `high_watermark`."""
    bookies: tuple[BookieDescription, ...]
    topic_id: str = ""
    """Which topic it is that has the name."""
    tier_tree: str = ""
    """Root of the exported tree with the segments that are not `in_ledger`; empty: none is."""

    @property
    def local(self) -> StoredPart:
        """What is on bookies, the open segment among it."""
        return _part(one for one in self.segments if one.in_ledger)

    @property
    def tiered(self) -> StoredPart:
        """What files of the tier hold; some of it is on bookies as well."""
        return _part(one for one in self.segments if one.object_version is not None)

    @property
    def waiting(self) -> StoredPart:
        """What is closed and kept, and no file holds: with tiering it is to be copied."""
        return _part(
            one
            for one in self.segments
            if one.object_version is None and (one.end_offset or 0) > self.log_start
        )


def _part(segments: Iterable[Segment]) -> StoredPart:
    sizes = [one.size_bytes for one in segments]
    return StoredPart(len(sizes), sum(sizes))


_Census = Literal[
    "degraded_ledgers",
    "short_segments",
    "segments",
    "marked_ledgers",
    "audited_ms",
    "unchecked_ledgers",
]


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """What one broker sees of the cluster."""

    cluster_id: str
    brokers: tuple[BrokerDescription, ...]
    bookies: tuple[BookieDescription, ...]
    metadata_connected: bool
    write_quorum: int
    ack_quorum: int
    degraded_ledgers: int | None
    """Open ledgers that get fewer copies than asked for; None: not known."""
    short_segments: int | None
    """Segments that surely lack a copy somebody could read now; None: not known. That the others
    have all their copies is not said: an entry is acknowledged by `ack_quorum` bookies."""
    segments: int | None
    """Segments looked at."""
    census_complete: bool
    """Whether these are all."""
    metadata_error: str = ""
    """Why `metadata_connected` is False, with the address of the metadata store."""
    marked_ledgers: int | None = None
    """Ledgers for which copies are being made, 1000: or more; None: not known."""
    audited_ms: int | None = None
    """When an auditor last looked at every ledger; None: not known, or never."""
    unchecked_ledgers: int | None = None
    """Of how many nothing was known then: a bookie was away, say."""
    returned_bookies: tuple[str, ...] = ()
    """Bookies that hold ledgers older than their process, and since whose return no auditor has
    looked at every ledger: whether they have all their copies is not known."""

    @property
    def writable_bookies(self) -> int:
        """Bookies that accept new entries."""
        return sum(bookie.state == "rw" for bookie in self.bookies)

    @property
    def healthy(self) -> bool:
        """Whether writes are served and every new entry gets all its copies."""
        return (
            bool(self.brokers)
            and self.metadata_connected
            and self.writable_bookies >= self.write_quorum
            and self.degraded_ledgers == 0
        )


def health_of(reply: pb.ClusterHealthReply) -> ClusterHealth:
    """The cluster as a broker tells of it; what it left out is not known."""

    def known(field: _Census) -> int | None:
        return getattr(reply, field) if reply.HasField(field) else None

    return ClusterHealth(
        cluster_id=reply.cluster_id,
        brokers=tuple(BrokerDescription(b.broker_id, b.address) for b in reply.brokers),
        bookies=tuple(bookie_of(bookie) for bookie in reply.bookies),
        metadata_connected=reply.metadata_connected,
        write_quorum=reply.write_quorum,
        ack_quorum=reply.ack_quorum,
        degraded_ledgers=known("degraded_ledgers"),
        short_segments=known("short_segments"),
        segments=known("segments"),
        census_complete=reply.census_complete,
        metadata_error=reply.metadata_error,
        marked_ledgers=known("marked_ledgers"),
        audited_ms=known("audited_ms"),
        unchecked_ledgers=known("unchecked_ledgers"),
        returned_bookies=tuple(reply.returned_bookies),
    )


_NUMBER = attrgetter("partition")
Told = dict[tuple[int, str, str, bool, bool], PartitionDescription]
"""Descriptions of partitions by what they say."""


def topic_of(info: pb.TopicInfo, warning: str = "") -> TopicDescription:
    """A topic as a broker tells of it."""
    return _described(info, _partitions_of(info.partitions, {}), warning)


def topics_of(reply: pb.ListTopicsReply, told: Told) -> Iterator[TopicDescription]:
    """The topics of one page of a list.

    `told`: descriptions that the topics of one list share, for partitions of different topics that
    have a number and an owner in common are described by the same words, by most brokers once.
    Raises BrokerUnavailable for a page that names partitions which it does not tell of.
    """
    shared = _partitions_of(reply.partitions, told)
    for info in reply.topics:
        try:
            partitions = [shared[place] for place in info.shared]
        except IndexError as error:
            raise BrokerUnavailable(f"a list that makes no sense was told: {error}") from error
        yield _described(info, partitions or _partitions_of(info.partitions, told))


def _partitions_of(infos: Iterable[pb.PartitionInfo], told: Told) -> list[PartitionDescription]:
    found: list[PartitionDescription] = []
    for part in infos:
        said = (
            part.partition, part.owner_id, part.owner_address, part.decommissioned, part.removed
        )  # fmt: skip
        known = told.get(said)
        if known is None:
            known = told[said] = PartitionDescription(*said)
        found.append(known)
    return found


def _described(
    info: pb.TopicInfo, partitions: list[PartitionDescription], warning: str = ""
) -> TopicDescription:
    partitions.sort(key=_NUMBER)
    return TopicDescription(
        name=info.name,
        topic_id=info.topic_id.hex(),
        partitions=tuple(partitions),
        config=dict(info.config),
        created_ms=info.created_ms,
        effective=dict(info.effective),
        warning=warning,
    )


def bookie_of(info: pb.BookieInfo) -> BookieDescription:
    """A bookie as a broker tells of it."""
    return BookieDescription(
        info.bookie_id,
        info.incarnation,
        info.wire_address,
        info.control_address,
        info.state,
        info.fault_domain,
    )


def ledger_of(reply: pb.ShowLedgerReply) -> LedgerDescription:
    """A ledger's record, and what its bookies said."""
    record = records_pb2.LedgerRecord.FromString(reply.ledger_record)
    return LedgerDescription(
        ledger_id=record.ledger_id,
        state=records_pb2.LedgerState.Name(record.state),
        ensemble_size=record.ensemble_size,
        write_quorum=record.write_quorum,
        ack_quorum=record.ack_quorum,
        fragments=tuple(
            FragmentDescription(fragment.first_entry, tuple(fragment.members))
            for fragment in record.fragments
        ),
        last_entry=record.last_entry if record.HasField("last_entry") else None,
        length=record.length if record.HasField("length") else None,
        created_ms=record.ctime_ms,
        degraded=record.degraded,
        custom=dict(record.custom),
        holders=tuple(
            HolderDescription(
                holder.bookie_id,
                holder.incarnation,
                holder.reachable,
                holder.last_add_confirmed,
                holder.fenced,
                holder.error,
            )
            for holder in reply.holders
        ),
    )


NO_LIMIT, BY_DEFAULT = "no limit", "default"


def quota_text(value: int | None) -> str:
    """One value of a quota as people read it."""
    return BY_DEFAULT if value is None else str(value) if value else NO_LIMIT


@dataclass(frozen=True, slots=True, repr=False)
class ClientQuota:
    """What a client id may use of each broker; 0: no limit, None: the default counts."""

    client_id: str
    """Empty: the default of the broker that answered."""
    bytes_in_per_s: int | None = None
    """What it sends."""
    bytes_out_per_s: int | None = None
    """What it reads."""
    requests_per_s: int | None = None
    """Messages on its produce and fetch streams, and its other calls."""
    connections_max: int | None = None
    """With such streams."""

    def __repr__(self) -> str:
        names = ("bytes_in_per_s", "bytes_out_per_s", "requests_per_s", "connections_max")
        values = ", ".join(f"{name}: {quota_text(getattr(self, name))}" for name in names)
        return f"<ClientQuota {self.client_id!r} {values}>"


def quota_of(view: pb.QuotaView) -> ClientQuota:
    """The description of one client's quotas."""
    return ClientQuota(
        view.client_id,
        view.bytes_in_per_s if view.HasField("bytes_in_per_s") else None,
        view.bytes_out_per_s if view.HasField("bytes_out_per_s") else None,
        view.requests_per_s if view.HasField("requests_per_s") else None,
        view.connections_max if view.HasField("connections_max") else None,
    )


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """What the cluster knows of a sink of Spark: a query's checkpoint, or a txnId (ADR 67)."""

    sink_id: str
    """`query/ID`, of a stream's checkpoint; `txn/NAME`, of a batch write with that txnId."""
    state: Literal["staging", "decided", "published", "ended"]
    """"staging": nothing is decided yet. "decided": the last batch is not published, and what it
    staged stays until it is. "published": all of the last batch is in its topic. "ended": by an
    operator; it decides nothing any more."""
    batch_id: int
    """Decided last; -1: none yet."""
    staging_topic: str
    """Where it stages, or would."""
    decided_ms: int | None
    """When its last batch was decided."""
    changed_ms: int
    """When anything of this changed last."""


def sink_of(state: pb.SinkState) -> SinkDescription:
    """The description of one sink."""
    told: Literal["staging", "decided", "published", "ended"] = "published"
    if state.ended:
        told = "ended"
    elif state.batch_id < 0:
        told = "staging"
    elif not state.published:
        told = "decided"
    return SinkDescription(
        state.sink_id,
        told,
        state.batch_id,
        staging_topic(state.sink_id, state.generation),
        state.decided_ms if state.batch_id >= 0 else None,
        state.touched_ms,
    )
