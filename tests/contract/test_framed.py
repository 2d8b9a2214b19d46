"""FramedConnection over whatever carries its bytes: sockets of both loops, memory (ledger §3)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import NamedTuple

import pytest
import uvloop

from octavo.proto.bookie_wire import Frame, FrameType, encode_frame
from octavo.proto.endpoints import SocketNetwork
from octavo.proto.framed import (
    PING_INTERVAL_S,
    SILENCE_LIMIT_S,
    WRITE_HIGH_WATER_BYTES,
    FramedConnection,
)
from octavo.proto.memory_transport import WINDOW_BYTES, Link, MemoryNetwork
from octavo.proto.transport import Network
from octavo.runtime.address import join_address
from octavo.runtime.errors import BookieUnavailable, ConfigError, OctavoError
from tests.virtual_loop import VirtualLoop

DEADLINE_S = 30.0
LARGE_BYTES = 3_000_000


class Kind(NamedTuple):
    """A network on a loop."""

    make_loop: Callable[[], asyncio.AbstractEventLoop]
    make_network: Callable[[], Network]


def hesitating() -> MemoryNetwork:
    """Nothing takes as long as what came before it."""
    rng = random.Random(5)
    return MemoryNetwork(lambda: rng.choice((0.0, 0.0, 0.001, 0.003)))


KINDS = {
    "asyncio": Kind(asyncio.new_event_loop, SocketNetwork),
    "uvloop": Kind(uvloop.new_event_loop, SocketNetwork),
    "memory on asyncio": Kind(asyncio.new_event_loop, MemoryNetwork),
    "memory on uvloop": Kind(uvloop.new_event_loop, MemoryNetwork),
    "memory that hesitates": Kind(VirtualLoop, hesitating),
}


class End:
    """One framed connection and what it was told."""

    def __init__(self, *, answer_malformed: bool = False) -> None:
        self.frames: list[Frame] = []
        self.ends: list[OctavoError | None] = []
        self.opened = 0
        self.fails = False
        self.connection = FramedConnection(
            self._on_frame,
            lambda _, reason: self.ends.append(reason),
            self._on_open,
            on_malformed=self._explain if answer_malformed else None,
        )

    def _on_open(self, _connection: FramedConnection) -> None:
        self.opened += 1

    def _on_frame(self, _connection: FramedConnection, frame: Frame) -> None:
        if self.fails:
            raise KeyError("a mistake of the owner")
        self.frames.append(frame._replace(body=bytes(frame.body)))

    @staticmethod
    def _explain(connection: FramedConnection, error: OctavoError) -> None:
        connection.send([encode_frame(FrameType.ERROR, 99, error.cause.encode())])

    def say(self, number: int, body: bytes = b"") -> None:
        self.connection.send([encode_frame(FrameType.READ, number, body)])

    @property
    def numbers(self) -> list[int]:
        return [frame.request_id for frame in self.frames]


class Pair:
    """A connection of one end that dialled and one that took it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.taken: list[End] = []
        self.errors: list[dict[str, object]] = []
        self.answer_malformed = False

    async def open(self) -> tuple[End, End]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.listener = await self.network.listen(self._accept, "127.0.0.1", 0)
        self.address = join_address("127.0.0.1", self.listener.port)
        near = End()
        connection = await self.network.dial(self.address, lambda: near.connection, "peer")
        assert connection is near.connection
        assert near.opened == 1
        await until(lambda: bool(self.taken) and self.taken[0].opened == 1)
        return near, self.taken[0]

    def _accept(self) -> FramedConnection:
        end = End(answer_malformed=self.answer_malformed)
        self.taken.append(end)
        return end.connection

    @property
    def link(self) -> Link:
        assert isinstance(self.network, MemoryNetwork)
        return self.network.links[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


Scene = Callable[[Pair], Coroutine[None, None, None]]


def play(scene: Scene, kind: Kind) -> Pair:
    with asyncio.Runner(loop_factory=kind.make_loop) as runner:

        async def all_of_it() -> Pair:
            pair = Pair(kind.make_network())
            await scene(pair)
            await pair.listener.close()
            return pair

        return runner.run(all_of_it())


everywhere = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
in_memory = pytest.mark.parametrize(
    "kind",
    [kind for name, kind in KINDS.items() if "memory" in name],
    ids=[name for name in KINDS if "memory" in name],
)


@everywhere
def test_frames_of_all_sizes_arrive_whole_and_in_order_both_ways(kind: Kind) -> None:
    sizes = [0, 1, 17, 4096, 70_000, LARGE_BYTES, 3, 300_000, 0, 0, 5]

    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        for end in (near, far):
            end.connection.start_keepalive()
            for number, size in enumerate(sizes):
                end.say(number, bytes([number]) * size)
        for end in (near, far):
            await until(lambda end=end: len(end.frames) == len(sizes))  # type: ignore[misc]
            assert end.numbers == list(range(len(sizes)))
            assert [frame.body for frame in end.frames] == [
                bytes([number]) * size for number, size in enumerate(sizes)
            ]
        near.connection.close()
        await until(lambda: bool(near.ends and far.ends))

    assert play(scene, kind).errors == []


@everywhere
def test_a_close_sends_what_is_queued_and_both_are_told_once(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        near.say(1, bytes(LARGE_BYTES))
        near.say(2)
        near.connection.close()
        near.connection.close()
        assert near.connection.closed
        assert near.ends == [], "not from inside the call"
        near.say(3)
        await until(lambda: bool(near.ends and far.ends))
        assert far.numbers == [1, 2]
        assert near.ends == far.ends == [None]
        far.say(4)
        assert far.connection.closed
        await asyncio.sleep(0.01)
        assert near.frames == []
        assert near.ends == far.ends == [None]
        await near.connection.wait_closed()

    assert play(scene, kind).errors == []


@everywhere
def test_an_abort_tells_its_own_reason_and_the_peer_that_it_is_over(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        far.connection.pause_reading()
        near.say(1, bytes(2 * WRITE_HIGH_WATER_BYTES))
        assert near.connection.write_paused
        reason = BookieUnavailable("enough")
        near.connection.abort(reason)
        near.connection.abort(BookieUnavailable("again"))
        assert near.ends == []
        await until(lambda: bool(near.ends))
        assert near.ends == [reason]
        await near.connection.wait_writable()  # whoever waits for room is let go
        far.connection.resume_reading()
        await until(lambda: bool(far.ends))
        assert far.frames == [], "a part of a frame is no frame"
        assert len(far.ends) == 1

    assert play(scene, kind).errors == []


@everywhere
def test_w10_a_reader_that_pauses_holds_its_writer_back_and_nothing_is_lost(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        far.connection.pause_reading()
        piece = bytes(1 << 20)
        sent = 0
        while not near.connection.write_paused:
            near.say(sent, piece)
            sent += 1
            assert sent < 64, "somewhere it must stop"
        assert near.connection.outstanding_bytes() > WRITE_HIGH_WATER_BYTES
        waiting = asyncio.ensure_future(near.connection.wait_writable())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert far.frames == []
        far.say(7)  # the other direction goes on
        await until(lambda: near.numbers == [7])
        far.connection.resume_reading()
        await asyncio.wait_for(waiting, DEADLINE_S)
        await until(lambda: len(far.frames) == sent)
        assert far.numbers == list(range(sent))
        assert near.connection.outstanding_bytes() == 0
        near.connection.close()
        await until(lambda: bool(near.ends and far.ends))

    assert play(scene, kind).errors == []


@everywhere
def test_an_end_waits_behind_what_a_paused_reader_has_not_taken(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        far.connection.pause_reading()
        near.say(1, b"last words")
        near.connection.close()
        await until(lambda: bool(near.ends))
        await asyncio.sleep(0.02)
        assert far.ends == []
        far.connection.resume_reading()
        await until(lambda: bool(far.ends))
        assert far.numbers == [1]
        assert far.ends == [None]

    assert play(scene, kind).errors == []


@everywhere
def test_p11_a_malformed_stream_ends_with_a_word_of_why(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        pair.answer_malformed = True
        near, far = await pair.open()
        near.say(1)
        await until(lambda: far.numbers == [1])
        near.connection.send([b"\xff" * 64])
        await until(lambda: bool(near.ends and far.ends))
        assert far.numbers == [1]
        assert near.numbers == [99], "the last frame got through"
        assert near.ends == [None]
        assert far.ends[0] is not None
        assert near.frames[0].body == far.ends[0].cause.encode()

    assert play(scene, kind).errors == []


@everywhere
def test_a_mistake_of_the_owner_ends_the_connection_and_is_reported(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        far.fails = True
        near.say(1)
        near.say(2)
        await until(lambda: bool(near.ends and far.ends))
        assert far.frames == []
        assert isinstance(far.ends[0], BookieUnavailable)
        assert "a mistake of the owner" in far.ends[0].cause

    (error,) = play(scene, kind).errors
    assert isinstance(error["exception"], KeyError)


@everywhere
def test_a_ping_is_answered_and_neither_reaches_the_owner(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        near.connection.send([encode_frame(FrameType.PING, 0)])
        near.say(1)
        await until(lambda: bool(far.frames))
        far.say(2)
        await until(lambda: bool(near.frames))
        assert (near.numbers, far.numbers) == ([2], [1])
        near.connection.close()
        await until(lambda: bool(near.ends and far.ends))

    assert play(scene, kind).errors == []


@everywhere
def test_a_listener_that_closed_takes_nobody_and_ends_nothing(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        await pair.listener.close()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await pair.network.dial(pair.address, lambda: End().connection, "peer")
        near.say(1)
        await until(lambda: far.numbers == [1])
        assert pair.taken == [far]
        again = await pair.network.listen(lambda: End().connection, "127.0.0.1", 0)
        await again.close()
        near.connection.close()
        await until(lambda: bool(near.ends and far.ends))

    assert play(scene, kind).errors == []


@everywhere
def test_an_address_is_taken_once_and_written_rightly(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        with pytest.raises(OSError, match="in use"):
            await pair.network.listen(lambda: End().connection, "127.0.0.1", pair.listener.port)
        with pytest.raises(ConfigError, match="address of a bookie"):
            await pair.network.dial("nowhere", lambda: End().connection, "address of a bookie")
        assert far.connection.peer != "?"
        assert near.connection.peer == pair.address
        near.connection.close()
        await until(lambda: bool(near.ends and far.ends))

    assert play(scene, kind).errors == []


# --- what a simulator does to links ------------------------------------------------------------


@in_memory
def test_a_cut_tells_both_and_takes_what_was_under_way(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        near.say(1)
        await until(lambda: far.numbers == [1])
        near.say(2, bytes(10 * WINDOW_BYTES))
        pair.link.cut()
        near.say(3)
        assert near.ends == far.ends == []
        await until(lambda: bool(near.ends and far.ends))
        assert far.numbers == [1]
        for end in (near, far):
            (reason,) = end.ends
            assert isinstance(reason, BookieUnavailable)
            assert "broke" in reason.cause
        assert isinstance(pair.network, MemoryNetwork)
        assert pair.network.links == []

    assert play(scene, kind).errors == []


@in_memory
def test_a_frozen_link_holds_everything_back_and_then_delivers_it(kind: Kind) -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        pair.link.freeze()
        near.say(1, bytes(WINDOW_BYTES // 2))
        far.say(2)
        near.connection.close()
        await until(lambda: bool(near.ends))
        await asyncio.sleep(0.02)
        assert far.frames == near.frames == []
        assert far.ends == []
        pair.link.thaw()
        await until(lambda: bool(far.ends))
        assert far.numbers == [1]
        assert near.frames == [], "whoever closed receives nothing more"

    assert play(scene, kind).errors == []


def in_virtual_time(scene: Scene) -> Pair:
    return play(scene, Kind(VirtualLoop, MemoryNetwork))


def test_a_half_open_link_is_noticed_after_the_silence_limit_and_no_sooner() -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        for end in (near, far):
            end.connection.start_keepalive()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(100 * PING_INTERVAL_S)
        assert near.ends == far.ends == [], "pings keep an idle connection"
        pair.link.freeze()
        frozen_s = loop.time()
        await asyncio.wait_for(near.connection.wait_closed(), 100)
        silent_s = loop.time() - frozen_s
        assert SILENCE_LIMIT_S - PING_INTERVAL_S < silent_s <= SILENCE_LIMIT_S + PING_INTERVAL_S
        (reason,) = near.ends
        assert reason is not None
        assert "was silent" in reason.cause

    assert in_virtual_time(scene).errors == []


def test_a_short_freeze_ends_nothing() -> None:
    async def scene(pair: Pair) -> None:
        near, far = await pair.open()
        for end in (near, far):
            end.connection.start_keepalive()
        for _ in range(20):
            pair.link.freeze()
            await asyncio.sleep(SILENCE_LIMIT_S - 2.1)
            near.say(1)
            pair.link.thaw()
            await asyncio.sleep(PING_INTERVAL_S)
        assert near.ends == far.ends == []
        assert len(far.frames) == 20

    assert in_virtual_time(scene).errors == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_to_a_link_each_end_has_a_prefix_of_what_was_sent(seed: int) -> None:
    """And each is told of its end exactly once, whoever closes, aborts or cuts, and when."""

    async def scene(pair: Pair) -> None:
        rng = random.Random(seed)
        near, far = await pair.open()
        link, said = pair.link, {near: 0, far: 0}
        deeds: list[Callable[[], object]] = [link.freeze, link.thaw, link.thaw]
        for end in (near, far):
            deeds += [end.connection.pause_reading, *[end.connection.resume_reading] * 3]
        for step in range(200):
            end = rng.choice((near, far))
            if rng.random() < 0.6:
                size = rng.choice((0, 10, 5_000, WINDOW_BYTES))
                if not end.connection.closed:
                    end.say(said[end], bytes([said[end] % 251]) * size)
                    said[end] += 1
            elif rng.random() < 0.3:
                rng.choice(deeds)()
            else:
                await asyncio.sleep(rng.choice((0, 0, 0.001)))
            if step > 100 and rng.random() < 0.02:
                rng.choice((end.connection.close, end.connection.abort, link.cut))()
        link.thaw()
        for end in (near, far):
            end.connection.resume_reading()
            end.connection.close()
        await until(lambda: len(near.ends) == len(far.ends) == 1)
        await asyncio.sleep(0.1)
        for end, other in ((near, far), (far, near)):
            assert len(end.ends) == 1
            assert end.numbers == list(range(len(end.frames))), "in order, without a gap"
            assert len(end.frames) <= said[other]
            assert all(set(frame.body) <= {frame.request_id % 251} for frame in end.frames)
        assert isinstance(pair.network, MemoryNetwork)
        assert pair.network.links == []

    assert play(scene, Kind(VirtualLoop, hesitating)).errors == []
