"""A bookie as a real process: kill -9, restart, one directory for one process (spec/ledger.md
§6)."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from octavo.client.autorecovery.operator import operating
from octavo.client.ledger.writer import LedgerWriter
from octavo.metadata.bookies import BookieDirectory, BookieRegistration
from octavo.metadata.connect import connect_store
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.metadata.ledgers import LedgerCatalog, Quorum
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.proto.bookie_wire import FrameType, Status, decode_add_reply
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.ids import EntryId
from tests.bookie_rig import ROOT, WireClient, entry

pytestmark = pytest.mark.process

START_DEADLINE_S = 60.0
BATCH = 8


class Processes:
    """Metadata in this process, bookies as children."""

    def __init__(self, tmp_path: pathlib.Path) -> None:
        self._tmp_path = tmp_path
        self.clock, self.entropy = SystemClock(), SystemEntropy()
        self._server = EmbeddedMetadataServer(tmp_path / "meta", self.clock)
        self._children: list[asyncio.subprocess.Process] = []
        self.url = ""
        self._store: MetadataStore | None = None
        self._directory: BookieDirectory | None = None

    @property
    def store(self) -> MetadataStore:
        assert self._store is not None
        return self._store

    @property
    def catalog(self) -> LedgerCatalog:
        return LedgerCatalog(self.store, Paths(ROOT), clock=self.clock, entropy=self.entropy)

    async def start(self) -> None:
        port = await self._server.start()
        self.url = f"embedded://127.0.0.1:{port}{ROOT}"
        self._store = await connect_store(
            self.url, client_name="test", clock=self.clock, entropy=self.entropy
        )
        self._directory = BookieDirectory(self._store, Paths(ROOT))
        await self._directory.start()

    async def stop(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.kill()
            await child.wait()
        if self._directory is not None:
            await self._directory.close()
        await self.store.close()
        await self._server.stop()

    async def spawn(
        self, bookie_id: str = "bookie-1", folder: str = "data", *more: str
    ) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "octavo", "bookie", "--id", bookie_id, "--metadata", self.url),
            *("--data", str(self._tmp_path / folder), "--port", "0", "--control-port", "0"),
            *("-X", "metadata_session_timeout_s=1", "-X", f"segment_bytes={1 << 20}", *more),
            stderr=asyncio.subprocess.PIPE,
        )
        self._children.append(child)
        return child

    async def registered(self, after: str = "") -> BookieRegistration:
        """The live registration, once its address differs from `after`."""
        assert self._directory is not None
        async with asyncio.timeout(START_DEADLINE_S):
            while True:
                for found in self._directory.live():
                    if found.wire_address != after:
                        return found
                await self._directory.wait_changed()


@pytest_asyncio.fixture
async def processes(tmp_path: pathlib.Path) -> AsyncIterator[Processes]:
    made = Processes(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def connect(found: BookieRegistration) -> WireClient:
    host, _, port = found.wire_address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = WireClient(reader, writer, found.incarnation.bytes)
    await client.hello()
    return client


async def test_kill_9_while_adding_loses_nothing_acknowledged(processes: Processes) -> None:
    child = await processes.spawn()
    found = await processes.registered()
    ledger = (await processes.catalog.create(Quorum(1, 1, 1), [found.member])).metadata.ledger_id
    acked = 0  # entries below it were acknowledged
    sent = 0
    for round_number in range(3):
        client = await connect(found)
        target = acked + 40 * BATCH
        sent = acked
        answered: set[int] = set()  # replies may overtake each other: only a prefix counts
        while acked < target:
            while sent < acked + 32 * BATCH:
                client.send_add(
                    sent, *(entry(ledger, sent + i, b"%0999d" % (sent + i)) for i in range(BATCH))
                )
                sent += BATCH
            reply = await client.receive()
            assert reply.type == FrameType.ADD_REPLY
            assert decode_add_reply(reply, BATCH) == [Status.OK] * BATCH, f"round {round_number}"
            answered.add(reply.request_id)
            while acked in answered:
                acked += BATCH
        child.send_signal(signal.SIGKILL)
        await child.wait()
        await client.close()
        child = await processes.spawn()
        found = await processes.registered(after=found.wire_address)
        reader = await connect(found)
        readable = 0
        while readable < acked:
            found_run = await reader.read(ledger, readable, 500)
            assert found_run.status == Status.OK, (
                f"acknowledged entry {readable} of {acked} is gone"
            )
            for data in found_run.entries:
                assert data == entry(ledger, readable, b"%0999d" % readable)
                readable += 1
        await reader.close()
    child.send_signal(signal.SIGTERM)
    assert await child.wait() == 0


async def test_a_second_process_on_the_same_directory_refuses(processes: Processes) -> None:
    first = await processes.spawn()
    found = await processes.registered()
    second = await processes.spawn()
    _, stderr = await asyncio.wait_for(second.communicate(), START_DEADLINE_S)
    assert second.returncode == 1
    assert b"in use by another process" in stderr
    client = await connect(found)
    ledger = (await processes.catalog.create(Quorum(1, 1, 1), [found.member])).metadata.ledger_id
    assert await client.add(entry(ledger, 0)) == [Status.OK]
    await client.close()
    first.send_signal(signal.SIGTERM)
    assert await first.wait() == 0


async def test_a_machine_with_several_disks_holds_one_copy_of_an_entry(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    """3.8, P-5: a bookie for each disk. The machine that comes last gets records at once, and the
    one with two disks is lost without a loss; an index lies on a disk of its own."""
    hosts = {"a1": "127.0.0.1", "a2": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}
    index = tmp_path / "index"

    async def spawn(name: str) -> asyncio.subprocess.Process:
        more = ("--host", hosts[name], "--index-dir", str(index), "-X", "autorecovery=false")
        return await processes.spawn(name, f"disk-{name}", *more)

    async with operating(processes.url) as operator:
        client = operator.client

        async def there(names: set[str]) -> None:
            async with asyncio.timeout(START_DEADLINE_S):
                while {b.bookie_id for b in client.directory.live()} != names:
                    await client.directory.wait_changed()

        async def fresh() -> tuple[LedgerWriter, set[str]]:
            writer = await client.create_ledger(Quorum(3, 3, 2), {})
            record = (await client.catalog.read(writer.ledger_id)).metadata
            return writer, {member.bookie_id for member in record.last_fragment[1]}

        children = {name: await spawn(name) for name in ("a1", "a2", "b")}
        await there({"a1", "a2", "b"})
        writer, members = await fresh()
        assert members == {"a1", "a2", "b"}, "there is no third machine yet"
        await writer.close()
        children["c"] = await spawn("c")
        await there(set(hosts))
        written: list[LedgerWriter] = []
        for number in range(6):
            writer, members = await fresh()
            assert len({hosts[name] for name in members}) == 3, members
            await writer.append(b"%d" % number)
            written.append(writer)
        for name in ("a1", "a2"):
            children[name].kill()
            await children[name].wait()
        for writer in written:
            assert await writer.append(b"after") == 1, "Qa of the others acknowledge"
            await writer.close()
        await there({"b", "c"})
        children["c"].kill()
        await children["c"].wait()
        await there({"b"})
        assert not (tmp_path / "disk-c" / "index").exists()
        await spawn("c")
        await there({"b", "c"})
        for number, writer in enumerate(written):
            reader = await client.open_reader(writer.ledger_id)
            for entry_id, payload in enumerate((b"%d" % number, b"after")):
                (found,) = await reader.read(EntryId(entry_id), max_count=1, max_bytes=1 << 20)
                assert bytes(found)[36:] == payload
            await reader.close()
