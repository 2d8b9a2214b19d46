"""The pure delivery core of a producer: order, retries, sequences (spec groups I4-I6).

Events in, actions out: no socket, clock or task. A partition has at most `max_in_flight`
unresolved batches; retries resend them oldest first; a sequence once sent is never given to other
records while the first ones may still be stored.

How a gap is judged. A batch that left without an acknowledgement (expired, or refused by the
owner) leaves a *hole* in the sequences, and no batch is numbered behind a hole. Batches that were
are answered OUT_OF_ORDER_SEQUENCE with the owner's last sequence: they are *parked*. Once every
numbered batch of the partition is resolved or parked, the parked ones are numbered anew: in place
when the owner refused what left the hole and no copy of anything can be under way; else under the
partition's next producer epoch, which fences every copy of the old one at the first write. A
parked batch whose fate an attempt left open is not sent again when that of a hole is open too: both
copies may arrive in order, so its caller is told that the fate is unknown. The producer goes on
after all of this; it ends when it is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.client.messaging.producing.actions import Action, RequestIdentity, Stop
from octavo.client.messaging.producing.attempts import Attempts
from octavo.client.messaging.producing.in_flight import (
    SEQUENCE_MASK,
    Deliverable,
    InFlight,
    Partition,
    SenderSettings,
    State,
    sequence_reached,
)
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    DedupWindowFull,
    DeliveryFailed,
    InvalidProducerEpoch,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    OutOfOrderSequence,
    RequestTimedOut,
    Retry,
    Throttled,
)
from octavo.runtime.errors_of_writers import ProducerFenced
from octavo.runtime.invariant import invariant

STATE_TRUSTED_S = 3600.0
"""An owner may forget a producer a day after its last batch (I10); well before that, a quiet
partition counts as new."""
NOT_WRITTEN = (NotEnoughReplicas, Throttled, DedupWindowFull)
"""Answers that owners give only for what went into no ledger (A6, A8)."""
OWNER_DETAIL = "owner_address"
EPOCH_MAX = 32_766
"""Highest epoch of a producer id (int16); then a new id is asked for, once no fate of any partition
is unknown (I6)."""
LAST_SEQUENCE_DETAIL = "last_sequence"
THROTTLE_DETAIL = "throttle_ms"


class SenderCore:
    """All partitions of one producer."""

    def __init__(self, settings: SenderSettings, entropy: Entropy) -> None:
        self.settings = settings
        self.fatal: OctavoError | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self._entropy = entropy
        self._resetting = False
        self._asked_identity = False
        self._attempts = Attempts(settings)
        self._partitions: dict[tuple[str, int], Partition] = {}

    # --- events ---------------------------------------------------------------------------------

    def room(self, partition: Partition) -> bool:
        """Whether `add` would accept a batch now."""
        return (
            self.fatal is None
            and not partition.ended
            and not self._resetting
            and not partition.muted
            and len(partition.in_flight) < partition.window(self.settings)
            and (not partition.in_flight or partition.in_flight[-1].state is not State.WAITING)
        )

    def add(self, partition: Partition, batch: Deliverable, now_s: float) -> list[Action]:
        """Take over a batch; only when `room`."""
        invariant(self.room(partition), "a batch was added without room")
        if not partition.in_flight and now_s - partition.acknowledged_s > STATE_TRUSTED_S:
            partition.established = False
        partition.in_flight.append(InFlight(batch, partition))
        self._attempts.busy[partition] = None
        self._pump(partition, now_s)
        return self._taken()

    def owner_found(self, partition: Partition, owner: str, now_s: float) -> list[Action]:
        """The answer to FindOwner."""
        partition.finding = False
        partition.owner = owner
        self._pump(partition, now_s)
        return self._taken()

    def identity_granted(self, producer_id: int, epoch: int, now_s: float) -> list[Action]:
        """The answer to RequestIdentity: every partition starts again at sequence 0."""
        self.producer_id, self.producer_epoch = producer_id, epoch
        self._asked_identity = False
        self._resetting = False
        for partition in self._partitions.values():
            partition.start_epoch(epoch)
        for partition in list(self._attempts.busy):
            self._pump(partition, now_s)
        return self._taken()

    def acknowledged(
        self,
        correlation: int,
        base_offset: int,
        duplicate: bool,
        now_s: float,
        *,
        proves_earlier: bool = True,
    ) -> list[Action]:
        """A batch is stored; -1 when its offset is not known any more (I2).

        `proves_earlier`: the owner knew the producer, so what it accepted was next in line.
        """
        item = self._attempts.find(correlation)
        if item is not None:
            self._stored(item, base_offset, duplicate, now_s, proves_earlier=proves_earlier)
        return self._taken()

    def refused(self, correlation: int, error: OctavoError, now_s: float) -> list[Action]:
        """An attempt was answered with an error."""
        item = self._attempts.find(correlation)
        if item is None:
            return []  # an attempt already given up
        self._attempts.answered(item)
        item.last_error = error
        if isinstance(error, OutOfOrderSequence):
            self._out_of_order(item, error, now_s)
        elif isinstance(error, InvalidProducerEpoch | ProducerFenced):
            self._stop(of_unknown_fate(error) if isinstance(error, ProducerFenced) else error)
        elif item.is_refused_by(error, self.settings, now_s):
            self._attempts.drop(item, error, refused=True)
            self._settle(item.partition)
        else:
            self._retry(item, error, now_s)
        self._pump(item.partition, now_s)
        return self._taken()

    def written(self, correlations: Iterable[int]) -> list[Action]:
        """acks=0: a connection took these over; no reply is awaited (A4)."""
        for correlation in correlations:
            item = self._attempts.find(correlation)
            if item is not None:
                self._attempts.complete(item, -1, duplicate=False)
        return self._taken()

    def connection_lost(self, owner: str, error: OctavoError, now_s: float) -> list[Action]:
        """The connection to `owner` ended: what it carried has unknown fate."""
        for item in self._attempts.sent_to(owner):
            if item.batch.acks == 0:
                self._attempts.complete(item, -1, duplicate=False)  # A4: it is not told
                item.partition.owner = ""
            else:
                self._retry(item, error, now_s, lost=True)
        for partition in list(self._attempts.busy):
            self._pump(partition, now_s)
        return self._taken()

    def tick(self, now_s: float) -> list[Action]:
        """Time passed: request and delivery timeouts, ends of back-off."""
        limit = self.settings
        for partition in list(self._attempts.busy):
            for item in list(partition.in_flight):
                if now_s - item.batch.created_s >= limit.delivery_timeout_s:
                    self._expire(item, now_s)
                elif item.is_overdue(limit, now_s):
                    error = RequestTimedOut(
                        f"no answer from {item.owner} within {limit.request_timeout_s:g} s"
                    )
                    self._retry(item, error, now_s, lost=True)
            self._pump(partition, now_s)
        return self._taken()

    def next_deadline_s(self) -> float | None:
        """When `tick` is due next; None when nothing waits."""
        limit = self.settings
        deadline: float | None = None
        for partition in self._attempts.busy:
            for item in partition.in_flight:
                at = item.deadline_s(limit)
                if item.state is State.WAITING and partition.retry_at_s:
                    at = min(at, partition.retry_at_s)
                deadline = at if deadline is None else min(deadline, at)
        return deadline

    def abort(self, error: OctavoError) -> list[Action]:
        """Fail everything (close without waiting)."""
        self._stop(error)
        return self._taken()

    def partition(self, topic: str, number: int) -> Partition:
        """The state of one partition, made on first use."""
        found = self._partitions.get((topic, number))
        if found is None:
            found = Partition(topic, number, epoch=self.producer_epoch)
            self._partitions[topic, number] = found
        return found

    def life_of(self, correlation: int) -> tuple[str, bytes]:
        """Topic and topic id of an attempt; of one that is not known any more, of no topic."""
        item = self._attempts.find(correlation)
        return ("", b"") if item is None else (item.partition.topic, item.partition.topic_id)

    def end_life(self, partitions: Iterable[Partition], error: OctavoError) -> list[Action]:
        """Their topic was created again: fail what is open, with it all doubt about fates (I6)."""
        for partition in partitions:
            partition.ended = True
            for item in list(partition.in_flight):
                self._attempts.fail(item, error)
            partition.holes.clear()
            key = (partition.topic, partition.partition)
            if self._partitions.get(key) is partition:
                del self._partitions[key]
        return self._taken()

    def oldest(self) -> InFlight | None:
        """Of the batches taken over and not resolved, the one that was made first."""
        heads = (partition.in_flight[0] for partition in self._attempts.busy)
        return min(heads, key=lambda item: item.batch.created_s, default=None)

    def validate(self) -> None:
        """Check the invariants; tests call it after every event."""
        for partition in self._partitions.values():
            items = partition.in_flight
            invariant(len(items) <= self.settings.max_in_flight, "too many batches in flight (I4)")
            invariant(bool(items) == (partition in self._attempts.busy), "busy set is wrong")
            fresh = [item.base_sequence < 0 for item in items]
            invariant(fresh == sorted(fresh), "a numbered batch behind one without number")
            order = [(i.base_sequence - partition.next_sequence) & SEQUENCE_MASK for i in items]
            numbered = [
                at for at, item in zip(order, items, strict=True) if item.base_sequence >= 0
            ]
            invariant(numbered == sorted(numbered), "sequences out of order")

    # --- sending --------------------------------------------------------------------------------

    def _taken(self) -> list[Action]:
        attempts = self._attempts
        if self._resetting and not self._asked_identity and not attempts.any_fate_unknown():
            self._asked_identity = True
            attempts.actions.append(RequestIdentity())
        actions, attempts.actions = attempts.actions, []
        return actions

    def _pump(self, partition: Partition, now_s: float) -> None:
        """Send what may be sent, in order."""
        if self.fatal is not None or partition.ended:
            return
        waiting, sent, parked = _by_state(partition.in_flight)
        if waiting and not partition.owner:
            self._attempts.want_owner(partition)
        if partition.muted and (now_s < partition.retry_at_s or sent):
            return
        if parked or partition.holes or self._resetting:  # nothing is numbered behind a hole
            waiting = [item for item in waiting if item.base_sequence >= 0]
        if not waiting:
            return
        if self.settings.idempotent and self.producer_id < 0:
            if not self._asked_identity:
                self._asked_identity = True
                self._attempts.actions.append(RequestIdentity())
            return
        if not partition.owner:
            return
        partition.muted = False
        partition.retry_at_s = 0.0
        partition.last_owner = partition.owner
        first = partition.in_flight[0]
        for item in waiting[: max(partition.window(self.settings) - sent, 0)]:
            if self.settings.idempotent and not _may_follow(item, first):
                return
            self._attempts.send(item, self.producer_id, now_s)

    # --- outcomes -------------------------------------------------------------------------------

    def _stored(
        self,
        item: InFlight,
        base_offset: int,
        duplicate: bool,
        now_s: float,
        *,
        proves_earlier: bool = True,
    ) -> None:
        partition = item.partition
        is_numbered = item.batch.is_numbered
        if self.settings.idempotent and is_numbered:
            while partition.in_flight[0] is not item:
                self._attempts.overtaken(partition.in_flight[0], proved=proves_earlier)
            if partition.holes:
                partition.forget_holes(item.base_sequence)
        self._attempts.complete(item, base_offset, duplicate=duplicate)
        partition.failures = 0
        partition.refusal = None
        if is_numbered:
            partition.established = True
            partition.acknowledged_s = now_s
        self._settle(partition)
        self._pump(partition, now_s)

    def _out_of_order(self, item: InFlight, error: OctavoError, now_s: float) -> None:
        """I5, with holes as the reason for an expected gap."""
        partition = item.partition
        item.last_error = error
        last = _int_detail(error, LAST_SEQUENCE_DETAIL)
        if last is not None and last >= 0 and sequence_reached(last, item.last_sequence):
            self._stored(item, -1, True, now_s)
            return
        for older in partition.in_flight:
            if older is item:
                break
            if older.state is not State.PARKED:
                self._retry(item, error, now_s)
                return
        bases = {hole.base for hole in partition.holes}
        bases |= {i.base_sequence for i in partition.in_flight if i.state is State.PARKED}
        overlap = last is not None and last >= 0 and sequence_reached(last, item.base_sequence)
        if overlap or (bases and (last is None or (last + 1) & SEQUENCE_MASK in bases)):
            if overlap and item.loose:
                self._attempts.give_up(item, "the owner stored others under its sequences")
            else:
                item.state = State.PARKED
            self._settle(partition)
            return
        # This owner lacks what another one acknowledged: it may be one that lost its office.
        self._retry(item, error, now_s)
        partition.owner = ""

    def _retry(
        self, item: InFlight, error: OctavoError, now_s: float, *, lost: bool = False
    ) -> None:
        """Send it again when due; `lost`: no answer will come, and a copy may be stored later."""
        self._attempts.answered(item)
        item.last_error = error
        item.loose = item.loose or not isinstance(error, (*NOT_WRITTEN, OutOfOrderSequence))
        partition = item.partition
        partition.refusal = error if isinstance(error, NOT_WRITTEN) else partition.refusal
        first_of_round = not partition.muted
        partition.muted = True
        if first_of_round:
            partition.failures += 1
            limit = self.settings
            delay = min(
                limit.backoff_initial_s * 2.0 ** min(partition.failures - 1, 20),
                limit.backoff_max_s,
            )
            partition.retry_at_s = now_s + delay * self._entropy.uniform(0.8, 1.2)
        if lost:
            partition.owner = ""
            return
        pause_ms = _int_detail(error, THROTTLE_DETAIL)
        if pause_ms is not None:
            partition.retry_at_s = max(partition.retry_at_s, now_s + pause_ms / 1000)
        if isinstance(error, OutOfOrderSequence) or (
            error.retry is Retry.SAME_PEER and not isinstance(error, RequestTimedOut)
        ):
            return  # the owner is right, its answer is not yet
        hint = error.details.get(OWNER_DETAIL) if isinstance(error, NotLeader) else None
        partition.owner = str(hint or "")
        if hint and partition.failures == 1:
            partition.retry_at_s = now_s  # the owner moved and we know where to: no back-off

    def _expire(self, item: InFlight, now_s: float) -> None:
        """I4: the delivery timeout passed."""
        absent = item.state is not State.SENT and not item.loose
        last_error = item.last_error
        if absent and (last_error is None or isinstance(last_error, OutOfOrderSequence)):
            last_error = item.partition.refusal or last_error
        refused = absent and isinstance(last_error, NOT_WRITTEN)
        age_s = now_s - item.batch.created_s
        fate = "it was not stored" if absent else "it may or may not be stored"
        why = f"; last error: {last_error}" if last_error is not None else ""
        # Refused every time: the caller gets the retriable reason itself.
        kind = type(last_error) if refused and last_error else DeliveryFailed
        error = kind(
            f"{item.batch.count} records to {item.partition} were not acknowledged within "
            f"{age_s:.1f} s (delivery_timeout_ms); {fate}{why}",
            hint="check the brokers' health; raise delivery_timeout_ms to wait longer",
        )
        item.loose = not absent
        self._attempts.drop(item, error, refused=False)
        self._settle(item.partition)

    def _settle(self, partition: Partition) -> None:
        """Go on behind holes once nothing numbered of the partition has unknown fate."""
        if not partition.in_flight and not partition.holes:
            return
        numbered = [item for item in partition.in_flight if item.base_sequence >= 0]
        parked = [item for item in numbered if item.state is State.PARKED]
        holes = partition.holes
        if len(parked) < len(numbered) or not (holes or parked):
            return
        if any(hole.loose for hole in holes):
            for item in [item for item in parked if item.loose]:
                self._attempts.give_up(item, "a batch in front of it was given up")
                parked.remove(item)
        in_place = bool(holes) and all(hole.refused and not hole.loose for hole in holes)
        if in_place and not any(item.loose for item in parked):
            partition.fill_holes(parked)
        elif partition.epoch < EPOCH_MAX:
            partition.start_epoch(partition.epoch + 1)
        else:
            self._resetting = True

    def _stop(self, error: OctavoError) -> None:
        """The producer cannot go on: fail every batch."""
        if self.fatal is not None:
            return
        self.fatal = error
        for partition in list(self._attempts.busy):
            for item in list(partition.in_flight):
                self._attempts.fail(item, error)
        self._attempts.actions.append(Stop(error))


def of_unknown_fate(error: ProducerFenced) -> ProducerFenced:
    """The same for records that were on their way when somebody else became the writer (X32)."""
    cause = f"{error.cause}; what was not acknowledged may or may not be stored"
    return ProducerFenced(cause, hint=error.hint, **error.details)


def _may_follow(item: InFlight, first: InFlight) -> bool:
    """Whether it may be under way together with the oldest batch of its partition: what has no
    number is in its place by going alone."""
    return item is first or (item.batch.is_numbered and first.batch.is_numbered)


def _int_detail(error: OctavoError, name: str) -> int | None:
    """A whole number among an error's details."""
    try:
        return int(error.details[name])
    except (KeyError, ValueError):
        return None


def _by_state(items: Iterable[InFlight]) -> tuple[list[InFlight], int, bool]:
    """Those that wait, how many are sent, and whether any is parked."""
    waiting: list[InFlight] = []
    sent = 0
    parked = False
    for item in items:
        if item.state is State.WAITING:
            waiting.append(item)
        elif item.state is State.SENT:
            sent += 1
        else:
            parked = True
    return waiting, sent, parked
