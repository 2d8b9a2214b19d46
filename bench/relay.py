"""The bare relay: what the transports alone allow on this machine.

One client process streams batches over gRPC to a relay process, which passes each on to three sink
processes in add frames of the bookie wire and acknowledges when two sinks answered. Same messages,
frames, event loops and memory settings as the product; nothing is encoded, checked, ordered, stored
or indexed. Usage by itself: python -m bench.relay [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import grpc
import uvloop

from bench import pacing
from bench.stats import Latency, latency
from octavo.proto import broker_pb2 as pb
from octavo.proto import broker_pb2_grpc
from octavo.proto.bookie_wire import (
    TARGET_FRAME_BYTES,
    Frame,
    FrameType,
    encode_add_ok,
    encode_add_runs,
)
from octavo.proto.framed import FramedConnection
from octavo.runtime.errors import OctavoError
from octavo.runtime.malloc import tune_malloc
from octavo.runtime.process import die_with_parent

ROOT = pathlib.Path(__file__).resolve().parent.parent
KIB = 1024
SINKS = 3
ACKS_WANTED = 2
MESSAGE_BATCHES_MAX = 16
MESSAGE_BYTES_TARGET = KIB * KIB
"""The SDK's own way of filling a produce message."""
WINDOW_BYTES = 8 * KIB * KIB
"""Sent and not yet acknowledged, as eight partitions of a producer would have it."""
GRPC_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
_HEADER = struct.Struct(">qqqqI")
_INCARNATION = bytes(16)
_START_TIMEOUT_S = 20.0


class RelayRate(NamedTuple):
    """What one run moved, counted once, not per sink."""

    batch_bytes: int
    mb_per_s: float
    batches_per_s: float


# --- the sinks ---------------------------------------------------------------------------------


def _ignore_end(connection: FramedConnection, reason: OctavoError | None) -> None:
    """The parent ends everything; a lost connection needs no reaction."""


def _answer(connection: FramedConnection, frame: Frame) -> None:
    if frame.type == FrameType.ADD:
        connection.send([encode_add_ok(frame.request_id)])


async def _sink() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: FramedConnection(_answer, _ignore_end), "127.0.0.1", 0
    )
    _tell(server.sockets[0].getsockname()[1])
    await server.serve_forever()


# --- the relay ---------------------------------------------------------------------------------


class _Relay(broker_pb2_grpc.BrokerServicer):
    """Frames to all sinks, acknowledgements back; one Produce stream."""

    def __init__(self) -> None:
        self._sinks: list[FramedConnection] = []
        self._frames: dict[int, tuple[list[int], list[int]]] = {}
        """Request id -> (answers so far, in a list of one; correlations in the frame)."""
        self._next_request = 0
        self._next_entry = 0
        self._acked: deque[int] = deque()
        self._wake = asyncio.Event()

    async def connect(self, ports: list[int]) -> None:
        """To every sink."""
        loop = asyncio.get_running_loop()
        for port in ports:
            _, connection = await loop.create_connection(
                lambda: FramedConnection(self._answered, _ignore_end), "127.0.0.1", port
            )
            self._sinks.append(connection)

    def _answered(self, connection: FramedConnection, frame: Frame) -> None:
        answers, correlations = self._frames[frame.request_id]
        answers[0] += 1
        if answers[0] == ACKS_WANTED:
            self._acked.extend(correlations)
            self._wake.set()
        elif answers[0] == SINKS:
            del self._frames[frame.request_id]

    def _forward(self, batches: list[pb.ProduceBatch]) -> None:
        lengths: list[int] = []
        parts: list[bytes] = []
        correlations: list[int] = []
        size = 0
        for batch in batches:
            payload = batch.batch
            head = _HEADER.pack(1, self._next_entry, self._next_entry - 1, 0, 0)
            self._next_entry += 1
            lengths.append(len(head) + len(payload))
            parts += (head, payload)
            correlations.append(batch.correlation)
            size += lengths[-1]
            if size >= TARGET_FRAME_BYTES:
                self._send(lengths, parts, correlations, size)
                lengths, parts, correlations, size = [], [], [], 0
        if size:
            self._send(lengths, parts, correlations, size)

    def _send(
        self, lengths: list[int], parts: list[bytes], correlations: list[int], size: int
    ) -> None:
        self._next_request += 1
        self._frames[self._next_request] = ([0], correlations)
        frame = encode_add_runs(self._next_request, _INCARNATION, [(lengths, parts)], size)
        for sink in self._sinks:
            sink.send(frame)

    async def _take(self, requests: AsyncIterator[pb.ProduceRequest]) -> None:
        async for request in requests:
            self._forward(list(request.batches))
            for sink in self._sinks:
                await sink.wait_writable()

    async def Produce(
        self,
        request_iterator: AsyncIterator[pb.ProduceRequest],
        context: grpc.aio.ServicerContext[pb.ProduceRequest, pb.ProduceReply],
    ) -> AsyncIterator[pb.ProduceReply]:
        taking = asyncio.ensure_future(self._take(request_iterator))
        try:
            while not taking.done() or self._acked:
                await self._wake.wait()
                self._wake.clear()
                reply = pb.ProduceReply()
                while self._acked:
                    reply.acks.add(correlation=self._acked.popleft())
                yield reply
        finally:
            taking.cancel()


async def _relay(ports: list[int]) -> None:
    server = grpc.aio.server(options=GRPC_OPTIONS)
    servicer = _Relay()  # type: ignore[abstract]  # only Produce is ever called
    await servicer.connect(ports)
    broker_pb2_grpc.add_BrokerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _tell(port)
    await server.wait_for_termination()


# --- the client --------------------------------------------------------------------------------


class _Load:
    """Keeps the window full for some seconds."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.ProduceRequest, pb.ProduceReply], size: int
    ) -> None:
        self._call = call
        self._payloads = [os.urandom(size) for _ in range(max(2, 4 * KIB * KIB // size))]
        self._size = size
        self._window = max(WINDOW_BYTES // size, 4)
        self._per_message = max(1, min(MESSAGE_BATCHES_MAX, MESSAGE_BYTES_TARGET // size))
        self._sent = 0
        self._acked = 0
        self._moved = asyncio.Event()

    async def _read(self) -> None:
        while True:
            reply = await self._call.read()
            if not isinstance(reply, pb.ProduceReply):
                raise RuntimeError("the relay ended the stream")
            self._acked += len(reply.acks)
            self._moved.set()

    async def _until_acked(self, wanted: int) -> None:
        while self._acked < wanted:
            self._moved.clear()
            await self._moved.wait()

    async def run(self, seconds: float) -> RelayRate:
        reading = asyncio.ensure_future(self._read())
        try:
            await self._for(min(seconds / 4, 1.0))
            before, began = self._acked, time.monotonic()
            await self._for(seconds)
            taken = time.monotonic() - began
        finally:
            reading.cancel()
        count = self._acked - before
        return RelayRate(self._size, count * self._size / taken / 1e6, count / taken)

    async def _for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._until_acked(self._sent - self._window + self._per_message)
            request = pb.ProduceRequest()
            for _ in range(self._per_message):
                self._sent += 1
                request.batches.add(
                    correlation=self._sent,
                    topic="relay",
                    acks=-1,
                    batch=self._payloads[self._sent % len(self._payloads)],
                )
            await self._call.write(request)
        await self._until_acked(self._sent)


class _PacedLoad:
    """Open loop: `per_s` batches of one size each second, and how long each took from when it was
    due to its acknowledgement. What is due while a message is being written shares the next one."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.ProduceRequest, pb.ProduceReply], size: int
    ) -> None:
        self._call = call
        self._payload = os.urandom(size)
        self._due: list[float] = []
        self._taken = 0  # of them, written
        self._samples: list[float] = []
        self._added = asyncio.Event()
        self._answered = asyncio.Event()

    async def _write(self) -> None:
        while True:
            await self._added.wait()
            self._added.clear()
            request = pb.ProduceRequest()
            while self._taken < len(self._due) and len(request.batches) < MESSAGE_BATCHES_MAX:
                request.batches.add(
                    correlation=self._taken, topic="relay", acks=-1, batch=self._payload
                )
                self._taken += 1
            if self._taken < len(self._due):
                self._added.set()
            await self._call.write(request)

    async def _read(self) -> None:
        while True:
            reply = await self._call.read()
            if not isinstance(reply, pb.ProduceReply):
                raise RuntimeError("the relay ended the stream")
            now = time.monotonic()
            self._samples += [now - self._due[ack.correlation] for ack in reply.acks]
            self._answered.set()

    async def run(self, per_s: float, count: int, warmup: int) -> Latency:
        work = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._read())]
        for task in work:
            task.add_done_callback(lambda _: self._answered.set())  # it ends only by failing
        try:
            schedule = pacing.soon(time.monotonic, per_s, warmup + count)
            async for due in pacing.paced_async(schedule, time.monotonic, asyncio.sleep):
                self._due.append(due)
                self._added.set()
            while len(self._samples) < warmup + count:
                self._answered.clear()
                for task in work:
                    if task.done():
                        task.result()
                await self._answered.wait()
        finally:
            for task in work:
                task.cancel()
        return latency(self._samples[warmup:])


async def _client(port: int, size: int, seconds: float) -> None:
    async with _produce_stream(port) as call:
        rate = await _Load(call, size).run(seconds)
    print(json.dumps(rate), flush=True)


async def _paced_client(port: int, size: int, per_s: float, count: int, warmup: int) -> None:
    async with _produce_stream(port) as call:
        found = await _PacedLoad(call, size).run(per_s, count, warmup)
    print(json.dumps(found), flush=True)


@contextlib.asynccontextmanager
async def _produce_stream(
    port: int,
) -> AsyncIterator[grpc.aio.StreamStreamCall[pb.ProduceRequest, pb.ProduceReply]]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=GRPC_OPTIONS) as channel:
        call = broker_pb2_grpc.BrokerStub(channel).Produce()
        try:
            yield call
        finally:
            call.cancel()


# --- processes ---------------------------------------------------------------------------------


def _tell(port: int) -> None:
    print(port, flush=True)


def _spawn(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.relay", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process of the bare relay ended early")
    return line


class BareRelay:
    """The relay and its sinks, running inside a `with` block."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._port = 0

    def __enter__(self) -> BareRelay:
        try:
            for _ in range(SINKS):
                self._processes.append(_spawn("sink"))
            ports = [int(_line(process)) for process in self._processes]
            self._processes.append(_spawn("relay", *ports))
            self._port = int(_line(self._processes[-1]))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def measure(self, batch_bytes: int, seconds: float) -> RelayRate:
        """One client that keeps its window full, one run."""
        size, mb_per_s, batches_per_s = self._run("client", batch_bytes, seconds)
        return RelayRate(int(size), mb_per_s, batches_per_s)

    def measure_latency(self, batch_bytes: int, per_s: float, count: int, warmup: int) -> Latency:
        """One client that sends on schedule, one run."""
        return Latency(*self._run("paced", batch_bytes, per_s, count, warmup))

    def _run(self, role: str, *words: object) -> list[float]:
        client = _spawn(role, self._port, *words)
        try:
            found: list[float] = json.loads(_line(client))
            return found
        finally:
            client.wait(_START_TIMEOUT_S)
            if client.stdout is not None:
                client.stdout.close()


def _sizes() -> Iterator[int]:
    yield from (KIB, 16 * KIB, 64 * KIB, 256 * KIB, KIB * KIB)


def main() -> int:
    """Command line: without arguments a small table, with a role one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    if not args.role:
        with BareRelay() as relay:
            for size in _sizes():
                rate = relay.measure(size, args.seconds)
                print(f"{size // KIB:5d} KiB {rate.mb_per_s:7.1f} MB/s", flush=True)
            paced = relay.measure_latency(KIB, 1000, int(1000 * args.seconds), 1000)
            print(f"1,000 of 1 KiB a second: p50 {paced.p50_ms:.2f}, p99 {paced.p99_ms:.2f} ms")
        return 0
    die_with_parent()
    tune_malloc()
    role, *words = args.role
    with contextlib.suppress(KeyboardInterrupt):
        if role == "client":
            asyncio.run(_client(int(words[0]), int(words[1]), float(words[2])))
        elif role == "paced":
            port, size, per_s, count, warmup = words
            asyncio.run(_paced_client(int(port), int(size), float(per_s), int(count), int(warmup)))
        elif role == "sink":
            uvloop.run(_sink())
        else:
            uvloop.run(_relay(list(map(int, words))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
