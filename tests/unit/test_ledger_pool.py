"""Pool and runs: budgets, the late-loop rule, cutting of runs (3.9, W-10)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.entry_run import EntryRun, RunBuilder
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.quorum_actions import QuorumLimits
from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import (
    PREFIX_BYTES,
    VERSION,
    FrameType,
    Status,
    decode_add,
    encode_add,
    encode_add_runs,
    encode_frame,
)
from octavo.proto.framed import FramedConnection
from octavo.proto.memory_transport import MemoryNetwork
from octavo.runtime.clock import ManualClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import BookieUnavailable, ConfigError
from octavo.runtime.ids import Member
from tests.fake_bookie import FakeBookie
from tests.fix_ledger import until
from tests.static_addresses import StaticAddresses

INCARNATION = uuid.UUID(int=7)


def run_of(*payloads: bytes, first: int = 0) -> EntryRun:
    builder = RunBuilder(first)
    for payload in payloads:
        builder.append(b"h" * 36, payload)
    return builder.seal()


def test_runs_are_cut_without_copying_payloads() -> None:
    run = run_of(b"a", b"bb", b"ccc", first=10)
    assert (run.first, run.last, run.total_bytes) == (10, 12, 3 * 36 + 6)
    assert run.cut(0, 3) is run
    part = run.cut(1, 2)
    assert (list(part.ids), part.total_bytes) == ([11], 38)
    assert part.parts[1] is run.parts[3]
    assert run.above(9) is run
    above = run.above(11)
    assert above is not None
    assert list(above.ids) == [12]
    assert run.above(12) is None
    picked = run.select([0, 2])
    assert picked is not None
    assert (list(picked.ids), picked.parts[3]) == ([10, 12], b"ccc")
    assert run.select([]) is None


def test_frames_of_runs_equal_frames_of_entries() -> None:
    first, second = run_of(b"a", b"bb"), run_of(b"ccc")
    total = first.total_bytes + second.total_bytes
    runs = [(first.lengths, first.parts), (second.lengths, second.parts)]
    got = b"".join(encode_add_runs(7, bytes(16), runs, total))
    entries = [[b"h" * 36, p] for p in (b"a", b"bb", b"ccc")]
    assert got == b"".join(encode_add(7, bytes(16), entries))
    assert len(decode_add(got[PREFIX_BYTES:], 1000).entries) == 3


class Lane:
    """Collects outcomes."""

    def __init__(self, member: Member) -> None:
        self.incarnation = member.incarnation.bytes
        self.outcomes: list[Status] = []
        self.changed = asyncio.Event()

    def _note(self, status: Status) -> None:
        self.outcomes.append(status)
        self.changed.set()

    def confirmed(self, run: EntryRun) -> None:
        self._note(Status.OK)

    def answered(self, run: EntryRun, statuses: Sequence[int]) -> None:
        self._note(Status(statuses[0]))

    def failed(self, run: EntryRun, status: Status) -> None:
        self._note(status)


async def test_a_stalled_loop_does_not_expire_what_it_has_not_read() -> None:
    """3.9: late by more than a second: read first, expire at the next tick."""
    clock = ManualClock()
    bookie = FakeBookie("b0")
    await bookie.start()
    bookie.silent.add(FrameType.ADD)
    pool = BookiePool(
        StaticAddresses({"b0": bookie.address}),
        config=LedgerClientConfig(limits=QuorumLimits(add_timeout_s=5.0)),
        clock=clock,
        entropy=SeededEntropy(1),
    )
    pool.start()
    lane = Lane(Member("b0", bookie.incarnation))
    pool.channel("b0", "add").enqueue(lane, run_of(b"x"))
    await until(lambda: FrameType.ADD in bookie.received)
    clock.advance(7.0)
    await asyncio.sleep(0)
    assert (lane.outcomes, pool.late_ticks) == ([], 1)
    clock.advance(0.1)
    await asyncio.wait_for(lane.changed.wait(), 30)
    assert lane.outcomes == [Status.TIMEOUT]
    await pool.close()
    await bookie.stop()


async def test_unknown_bookies_and_refused_dials_fail_at_once() -> None:
    bookie = FakeBookie("b0")
    await bookie.start()
    await bookie.stop()
    pool = BookiePool(
        StaticAddresses({"b0": bookie.address}),
        config=LedgerClientConfig(),
        clock=ManualClock(),
        entropy=SeededEntropy(1),
    )
    with pytest.raises(BookieUnavailable):
        pool.channel("b1", "add")
    for _ in range(3):  # dialled once; then refused during the pause
        lane = Lane(Member("b0", bookie.incarnation))
        pool.channel("b0", "add").enqueue(lane, run_of(b"x"))
        await asyncio.wait_for(lane.changed.wait(), 30)
        assert lane.outcomes == [Status.DISCONNECTED]
    await pool.close()


async def test_connection_budget_holds_frames_back() -> None:
    """W-10."""
    bookie = FakeBookie("b0")
    await bookie.start()
    bookie.hold[FrameType.ADD] = gate = asyncio.Event()
    pool = BookiePool(
        StaticAddresses({"b0": bookie.address}),
        config=LedgerClientConfig(connection_in_flight_bytes=100_000),
        clock=ManualClock(),
        entropy=SeededEntropy(1),
    )
    lane = Lane(Member("b0", bookie.incarnation))
    channel = pool.channel("b0", "add")
    for _ in range(4):
        channel.enqueue(lane, run_of(bytes(200_000)))
    await until(lambda: FrameType.ADD in bookie.received)
    assert channel.in_flight_bytes == 200_036
    assert bookie.received.count(FrameType.ADD) == 1
    gate.set()
    await until(lambda: len(lane.outcomes) == 4)
    assert channel.in_flight_bytes == 0
    await pool.close()
    await bookie.stop()


async def test_a_hello_answered_in_the_turn_in_which_it_was_given_up_harms_nobody() -> None:
    """P-1: the reply finds nobody who waits, and the connection ends."""
    broken: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: broken.append(what))
    network = MemoryNetwork()
    greeted: list[FramedConnection] = []
    ended = asyncio.Event()
    accepted = FramedConnection(
        lambda connection, _frame: greeted.append(connection), lambda _, __: ended.set()
    )
    listener = await network.listen(lambda: accepted, "b0", 7)
    pool = BookiePool(
        StaticAddresses({"b0": "b0:7"}),
        config=LedgerClientConfig(),
        clock=ManualClock(),
        entropy=SeededEntropy(1),
        network=network,
    )
    channel = pool.channel("b0", "add")
    channel.enqueue(Lane(Member("b0", INCARNATION)), run_of(b"x"))
    channel.flush()
    await until(lambda: bool(greeted))
    reply = bookie_pb2.HelloReply(
        protocol_version=VERSION, bookie_id="b0", incarnation=str(INCARNATION)
    )
    # Delivered in the next turn, behind the end of the dialling that begins in this one.
    accepted.send([encode_frame(FrameType.HELLO_REPLY, 0, reply.SerializeToString())])
    await pool.close()
    await asyncio.wait_for(ended.wait(), 30)
    assert broken == []
    await listener.close()


def test_config_refuses_nonsense() -> None:
    with pytest.raises(ConfigError):
        LedgerClientConfig(request_timeout_s=0)
