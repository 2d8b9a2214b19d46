"""A bookie on loopback, spoken to in raw frames (design.md §4)."""

from __future__ import annotations

import asyncio
import pathlib
import struct
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from octavo.proto import bookie_pb2, bookie_pb2_grpc
from octavo.proto.bookie_wire import (
    HELLO_FRAME_BYTES_MAX,
    MAX_FRAME_BYTES,
    VERSION,
    Flags,
    Frame,
    FrameType,
    ReadRequest,
    Status,
    decode_add_reply,
    encode_frame,
    encode_read,
)
from octavo.runtime.checksum import crc32c
from octavo.supervisor.health import is_serving
from tests.bookie_rig import DEADLINE_S, BookieRig, WireClient, announcing, entry, until


@pytest_asyncio.fixture
async def rig(tmp_path: pathlib.Path) -> AsyncIterator[BookieRig]:
    async with BookieRig(tmp_path / "data") as made:
        yield made


def error_of(frame: Frame) -> bookie_pb2.ErrorReply:
    assert frame.type == FrameType.ERROR
    reply = bookie_pb2.ErrorReply()
    reply.ParseFromString(bytes(frame.body))
    return reply


async def still_serves(rig: BookieRig) -> None:
    """The server is unharmed: a new connection adds and reads."""
    client = await rig.client()
    ledger = await rig.ledger()
    assert await client.add(entry(ledger, 0)) == [Status.OK]
    assert (await client.read(ledger, 0)).entries == [entry(ledger, 0)]


async def test_hello(rig: BookieRig) -> None:
    client = await rig.client(hello=False)
    reply = await client.hello()
    assert reply.bookie_id == "bookie-1"
    assert uuid.UUID(reply.incarnation) == rig.server.incarnation
    assert reply.cluster_id == rig.server.cluster_id
    again = await rig.client(hello=False)
    assert (await again.hello(reply.cluster_id)).bookie_id == "bookie-1"


async def test_hello_of_another_cluster_is_refused(rig: BookieRig) -> None:
    client = await rig.client(hello=False)
    hello = bookie_pb2.Hello(protocol_version=VERSION, cluster_id=str(uuid.UUID(int=3)))
    reply = await client.call(FrameType.HELLO, hello)
    assert "cluster" in error_of(reply).cause
    assert await client.closed()


async def test_hello_of_another_version_is_refused(rig: BookieRig) -> None:
    client = await rig.client(hello=False)
    reply = await client.call(FrameType.HELLO, bookie_pb2.Hello(protocol_version=9))
    assert error_of(reply).status == Status.BAD_VERSION
    assert await client.closed()


async def test_nothing_before_hello(rig: BookieRig) -> None:
    client = await rig.client(hello=False)
    client.send_add(5, entry(1, 0))
    assert error_of(await client.receive()).status == Status.BAD_REQUEST
    assert await client.closed()


async def test_add_and_read_many_ledgers_in_one_frame(rig: BookieRig) -> None:
    client = await rig.client()
    a, b = await rig.ledger(), await rig.ledger()
    entries = [entry(lid, i) for i in range(50) for lid in (a, b)]
    assert await client.add(*entries) == [Status.OK] * 100
    for lid in (a, b):
        reply = await client.read(lid, 0, 50)
        assert reply.entries == [entry(lid, i) for i in range(50)]
        assert reply.lac == 48
    assert (await client.read(a, 50)).status == Status.NO_SUCH_ENTRY


async def test_one_reply_per_frame_in_any_number(rig: BookieRig) -> None:
    client = await rig.client()
    ledger = await rig.ledger()
    await client.add(entry(ledger, 0))
    for request_id in range(1, 201):
        client.send_add(request_id, entry(ledger, request_id))
    seen = {(await client.receive()).request_id for _ in range(200)}
    assert seen == set(range(1, 201))


async def test_mixed_outcomes_of_one_frame(rig: BookieRig) -> None:
    client = await rig.client()
    good, fenced = await rig.ledger(), await rig.ledger()
    await rig.server.store.fence(fenced)
    broken = bytearray(entry(good, 1))
    broken[-1] ^= 1
    statuses = await client.add(entry(good, 0), entry(fenced, 0), bytes(broken), entry(good, 1))
    assert statuses == [Status.OK, Status.FENCED, Status.BAD_DIGEST, Status.OK]


async def test_fence_over_the_wire(rig: BookieRig) -> None:
    client = await rig.client()
    ledger = await rig.ledger()
    await client.add(entry(ledger, 0), entry(ledger, 1))
    request = bookie_pb2.FenceRequest(
        ledger_id=ledger, incarnation=str(uuid.UUID(bytes=client.incarnation))
    )
    reply = bookie_pb2.FenceReply()
    reply.ParseFromString(bytes((await client.call(FrameType.FENCE, request)).body))
    assert (reply.status, reply.last_add_confirmed) == (Status.OK, 0)
    assert await client.add(entry(ledger, 2)) == [Status.FENCED]
    assert await client.add(entry(ledger, 2), flags=Flags.RECOVERY) == [Status.OK]


async def test_r13_a_read_with_the_fence_flag_fences(rig: BookieRig) -> None:
    client = await rig.client()
    ledger = await rig.ledger()
    await client.add(entry(ledger, 0))
    flags = Flags.RECOVERY | Flags.FENCE
    assert (await client.read(ledger, 0, flags=flags)).entries == [entry(ledger, 0)]
    assert (await client.read(ledger, 1, flags=flags)).status == Status.NO_SUCH_ENTRY
    assert await client.add(entry(ledger, 1)) == [Status.FENCED]


async def read_lac(client: WireClient, ledger: int, previous: int, timeout_ms: int) -> Frame:
    request = bookie_pb2.ReadLacRequest(
        ledger_id=ledger,
        previous=previous,
        timeout_ms=timeout_ms,
        incarnation=str(uuid.UUID(bytes=client.incarnation)),
    )
    return await client.call(FrameType.READ_LAC, request)


async def test_lac_long_poll_over_the_wire(rig: BookieRig) -> None:
    writer, reader = await rig.client(), await rig.client()
    ledger = await rig.ledger()
    await writer.add(entry(ledger, 0))
    poll = asyncio.create_task(read_lac(reader, ledger, 0, 20_000))
    await writer.add(entry(ledger, 1), entry(ledger, 2))
    reply = bookie_pb2.ReadLacReply()
    reply.ParseFromString(bytes((await poll).body))
    assert reply.last_add_confirmed == 1
    lac = 2
    digest = crc32c(struct.pack(">qq", ledger, lac))
    explicit = bookie_pb2.WriteLac(
        ledger_id=ledger,
        last_add_confirmed=lac,
        crc32c=digest,
        incarnation=str(rig.server.incarnation),
    )
    written = bookie_pb2.WriteLacReply()
    written.ParseFromString(bytes((await writer.call(FrameType.WRITE_LAC, explicit)).body))
    assert written.status == Status.OK
    explicit.crc32c = digest ^ 1
    written.ParseFromString(bytes((await writer.call(FrameType.WRITE_LAC, explicit)).body))
    assert written.status == Status.BAD_DIGEST
    reply.ParseFromString(bytes((await read_lac(reader, ledger, 1, 20_000)).body))
    assert reply.last_add_confirmed == 2


async def test_wrong_incarnation(rig: BookieRig) -> None:
    client = await rig.client()
    ledger = await rig.ledger()
    client.incarnation = uuid.UUID(int=12345).bytes
    assert await client.add(entry(ledger, 0)) == [Status.WRONG_INCARNATION]
    assert (await client.read(ledger, 0)).status == Status.WRONG_INCARNATION
    request = bookie_pb2.FenceRequest(ledger_id=ledger, incarnation=str(uuid.UUID(int=12345)))
    reply = bookie_pb2.FenceReply()
    reply.ParseFromString(bytes((await client.call(FrameType.FENCE, request)).body))
    assert reply.status == Status.WRONG_INCARNATION


@pytest.mark.parametrize("frame_type", [0, 15, 99, FrameType.ADD_REPLY])
async def test_unknown_type_is_answered_and_the_connection_lives(
    rig: BookieRig, frame_type: int
) -> None:
    client = await rig.client()
    client.send(encode_frame(frame_type, 7, b"???"))
    reply = await client.receive()
    assert reply.request_id == 7
    assert error_of(reply).status == Status.BAD_REQUEST
    ledger = await rig.ledger()
    assert await client.add(entry(ledger, 0)) == [Status.OK]


@pytest.mark.parametrize(
    ("frame_type", "body"),
    [
        (FrameType.ADD, b"short"),
        (FrameType.ADD, b"i" * 16 + struct.pack(">I", 4_000_000_000)),
        (FrameType.ADD, b"i" * 16 + struct.pack(">II", 1, 99)),
        (FrameType.READ, b"x"),
        (FrameType.FENCE, b"\xff\xff\xff"),
        (FrameType.FENCE, bookie_pb2.FenceRequest(ledger_id=1).SerializeToString()),
        (FrameType.READ_LAC, bookie_pb2.ReadLacRequest(ledger_id=-1).SerializeToString()),
        (FrameType.HELLO, b"\x08"),
    ],
)
async def test_malformed_bodies_are_answered(
    rig: BookieRig, frame_type: FrameType, body: bytes
) -> None:
    client = await rig.client()
    client.send(encode_frame(frame_type, 8, body))
    assert error_of(await client.receive()).status in (Status.BAD_REQUEST, Status.TOO_LARGE)
    await still_serves(rig)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
        b"\x00" * 64,
        b"\xff" * 64,
        announcing(MAX_FRAME_BYTES + 1),
        announcing(28, version=99) + b"12345678",
    ],
    ids=["http", "zeros", "ones", "oversize", "version"],
)
async def test_garbage_closes_only_its_connection(rig: BookieRig, garbage: bytes) -> None:
    client = await rig.client()
    client.send(garbage)
    assert await client.closed()
    await still_serves(rig)


async def test_a_client_that_vanishes_in_mid_frame(rig: BookieRig) -> None:
    client = await rig.client()
    client.send(announcing(1 << 20), b"x" * 1000)
    await client.close()
    await still_serves(rig)


async def test_in_flight_bytes_of_a_connection_are_bounded(tmp_path: pathlib.Path) -> None:
    """A connection above its budget is not read; everything is answered once the disk goes on."""
    budget = 64 * 1024
    async with BookieRig(tmp_path / "data", connection_in_flight_max_bytes=budget) as rig:
        client = await rig.client()
        ledger = await rig.ledger()
        await client.add(entry(ledger, 0))
        rig.disk.gate.clear()
        payload = b"x" * 16_000
        for request_id in range(1, 201):
            client.send_add(request_id, entry(ledger, request_id, payload))
        other = await rig.client()
        await other.read(
            ledger, 0
        )  # a turn of everything: the adds were received as far as allowed
        journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
        assert journal.queued_bytes < budget + (512 << 10), "budget plus one receive buffer"
        rig.disk.gate.set()
        for _ in range(200):
            assert decode_add_reply(await client.receive(), 1) == [Status.OK]
        assert (await other.read(ledger, 200)).entries == [entry(ledger, 200, payload)]


async def test_connections_are_capped(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", connections_max=2) as rig:
        first, second = await rig.client(), await rig.client()
        third = await rig.client(hello=False)
        refused = error_of(await third.receive())
        assert (refused.status, "2 connections" in refused.cause) == (Status.OVERLOADED, True)
        assert await third.closed()
        ledger = await rig.ledger()
        assert await first.add(entry(ledger, 0)) == [Status.OK]
        assert await second.add(entry(ledger, 1)) == [Status.OK]


async def test_ping_is_answered(rig: BookieRig) -> None:
    client = await rig.client()
    client.send(encode_frame(FrameType.PING, 77))
    reply = await client.receive()
    assert (reply.type, reply.request_id) == (FrameType.PONG, 77)


async def test_fail_stop_closes_connections(rig: BookieRig) -> None:
    """B-8: nothing is acknowledged after a failed sync."""
    client = await rig.client()
    ledger = await rig.ledger()
    await client.add(entry(ledger, 0))
    rig.disk.fail_sync = True
    client.send_add(5, entry(ledger, 1))
    assert await client.closed()
    assert rig.server.failed.done()
    rig.disk.fail_sync = False


async def test_control_service(rig: BookieRig) -> None:
    client = await rig.client()
    ledger = await rig.ledger()
    await client.add(entry(ledger, 0))
    await client.read(ledger, 0)
    assert await is_serving(rig.server.control_address)
    async with grpc.aio.insecure_channel(rig.server.control_address) as channel:
        control = bookie_pb2_grpc.BookieControlStub(channel)
        info = await control.Info(bookie_pb2.InfoRequest())
    assert info.state == "rw"
    assert info.bookie_id == "bookie-1"
    assert info.entries_read == 1
    assert info.journal_syncs >= 1
    assert info.journal_bytes_written > 0


async def test_reads_addressed_before_a_restart(rig: BookieRig) -> None:
    """A read frame survives a crash and restart of the bookie: same incarnation, same answer."""
    ledger = await rig.ledger()
    client = await rig.client()
    await client.add(entry(ledger, 0))
    await rig.crash()
    client = await rig.client()
    client.send(encode_read(1, ReadRequest(client.incarnation, ledger, 0, 1, 1 << 20)))
    assert (await client.receive()).type == FrameType.READ_REPLY


async def test_rd7_long_polls_end_with_their_connection(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", long_polls_max=3) as rig:
        client, store = await rig.client(), rig.server.store
        ledger = await rig.ledger()
        await client.add(entry(ledger, 0), entry(ledger, 1))
        ask = bookie_pb2.ReadLacRequest(
            ledger_id=ledger, previous=5, timeout_ms=30_000, incarnation=str(rig.server.incarnation)
        ).SerializeToString()
        client.send(*(encode_frame(FrameType.READ_LAC, i, ask) for i in range(1, 4)))
        found = store._table.by_id[ledger]  # pyright: ignore[reportPrivateUsage]
        await until(lambda: len(found.pollers) == 3)
        await client.close()
        await until(lambda: not found.pollers and not found.pins)
        poll = asyncio.create_task(store.read_lac(ledger, 5, DEADLINE_S))
        await until(lambda: len(found.pollers) == 1)
        assert await store.write_lac(ledger, 6) is Status.OK
        assert (await poll).lac == 6


async def test_who_does_not_say_hello_is_told_and_closed(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", hello_timeout_s=0.5) as rig:
        greeted = await rig.client()
        silent = await rig.client(hello=False)
        assert "no hello" in error_of(await silent.receive()).cause
        assert await silent.closed()
        ledger = await rig.ledger()
        assert await greeted.add(entry(ledger, 0)) == [Status.OK]


async def test_before_the_hello_a_large_frame_is_refused(rig: BookieRig) -> None:
    """Strangers get little memory: said and closed on the prefix alone."""
    stranger = await rig.client(hello=False)
    stranger.send(announcing(HELLO_FRAME_BYTES_MAX + 1))
    assert error_of(await stranger.receive()).status == Status.TOO_LARGE
    assert await stranger.closed()
    await still_serves(rig)


async def test_an_older_client_is_told_which_version_is_spoken(rig: BookieRig) -> None:
    client = await rig.client(hello=False)
    client.send(struct.pack(">IBBHQ", 12, 1, FrameType.HELLO, 0, 0))
    refused = error_of(await client.receive())
    assert (refused.status, "version 1" in refused.cause) == (Status.BAD_VERSION, True)
    assert refused.hint
    assert await client.closed()


async def test_r15_a_damaged_frame_ends_its_connection_and_does_nothing(rig: BookieRig) -> None:
    client = await rig.client()
    ledger = await rig.ledger()
    body = bookie_pb2.FenceRequest(ledger_id=ledger, incarnation=str(rig.server.incarnation))
    frame = bytearray(encode_frame(FrameType.FENCE, 8, body.SerializeToString()))
    frame[-1] ^= 1
    client.send(bytes(frame))
    refused = error_of(await client.receive())
    assert (refused.status, "crc32c" in refused.cause) == (Status.BAD_REQUEST, True)
    assert await client.closed()
    other = await rig.client()
    assert await other.add(entry(ledger, 0)) == [Status.OK], "not fenced"
