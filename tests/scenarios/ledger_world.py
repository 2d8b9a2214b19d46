"""One ledger, its writer and its recoverers, fake bookies on real sockets: the commands.

The client is the real one with short limits, the metadata store is in memory. `judge` holds, after
every step: an entry that was confirmed to its writer has Qa copies at members of its ensemble,
unless the scenario itself destroyed one.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.client.ledger import LedgerClient, Quorum
from octavo.client.ledger.writer import LedgerWriter
from octavo.proto.bookie_wire import FrameType
from octavo.proto.entry import payload_of
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import NO_ENTRY, EntryId
from tests.fake_bookie import FakeBookie
from tests.fix_ledger import FakeCluster, until
from tests.scenarios.judged import Deed, JudgedWorld
from tests.scenarios.language import Step

CONFIRMED, REFUSED = "confirmed", "refused"
READ_BYTES = 1 << 20


@dataclass
class Add:
    """One entry, and what its writer was told."""

    value: str
    entry: EntryId = NO_ENTRY
    fate: str = ""

    def done(self, entry: EntryId, error: OctavoError | None) -> None:
        """Given to the writer. Refused and unknown are one here: it must not believe either."""
        self.entry, self.fate = entry, CONFIRMED if error is None else REFUSED


class LedgerWorld(JudgedWorld):
    """The bookies, the clients by name, and what the writer was told."""

    def __init__(self) -> None:
        super().__init__()
        self._made: FakeCluster | None = None
        self._clients: dict[str, LedgerClient] = {}
        self._writer: LedgerWriter | None = None
        self._adds: list[Add] = []
        self._told = 0
        """Adds up to here were told about."""
        self._destroyed = False

    def deeds(self) -> dict[str, Deed]:
        """See each of them."""
        return {
            "create": self._create,
            "add": self._add,
            "send": self._send,
            "told": self._tell,
            "ensembles": self._ensembles,
            "spare": self._spare,
            "stop": self._stop,
            "start": self._start,
            "mute": self._mute,
            "wipe": self._wipe,
            "speak": self._speak,
            "recover": self._recover,
            "close": self._close,
            "read": self._read,
            "holders": self._holders,
        }

    async def _client(self, name: str) -> LedgerClient:
        if name not in self._clients:
            self._clients[name] = await self.cluster.client()
        return self._clients[name]

    @property
    def cluster(self) -> FakeCluster:
        """The one that `create` made."""
        assert self._made is not None
        return self._made

    @property
    def writer(self) -> LedgerWriter:
        """The one that `create` made."""
        assert self._writer is not None
        return self._writer

    # --- the writer ---

    async def _create(self, step: Step) -> list[str]:
        """`create CLIENT [write=3] [ack=2]`: an empty ledger over the first bookies."""
        (name,) = step.args
        self._made = await FakeCluster.made()
        write, ack = step.number("write", 3), step.number("ack", 2)
        client = await self._client(name)
        self._writer = await client.create_ledger(Quorum(write, write, ack), {})
        return []

    async def _add(self, step: Step) -> list[str]:
        """`add VALUE..`: one entry each, all at once; waits until the fate of each is known."""
        await self._send(step)
        await until(lambda: all(add.fate for add in self._adds))
        return await self._tell(step)

    async def _send(self, step: Step) -> list[str]:
        """`send VALUE..`: as `add`, without waiting for anything."""
        for word in step.args:
            add = Add(word)
            self._adds.append(add)
            try:
                self.writer.add(word.encode(), add.done)
            except OctavoError:  # the same, said before anything left
                add.fate = REFUSED
        return []

    async def _tell(self, _step: Step) -> list[str]:
        """`told`: what the writer heard since it was last asked."""
        new, self._told = self._adds[self._told :], len(self._adds)
        return [f"{add.value} {add.fate or 'waiting'}" for add in new]

    async def _close(self, _step: Step) -> list[str]:
        """`close`: the writer ends its ledger."""
        record = await self.writer.close()
        return [f"last entry {record.last_entry}"]

    # --- bookies ---

    def _bookie(self, step: Step) -> FakeBookie:
        return self.cluster.bookie(step.args[0])

    async def _spare(self, _step: Step) -> list[str]:
        """`spare`: one more bookie, known to every client."""
        await self.cluster.add_bookie()
        count = len(self.cluster.bookies)
        clients = self._clients.values()
        await until(lambda: all(len(one.directory.live()) == count for one in clients))
        return []

    async def _stop(self, step: Step) -> list[str]:
        """`stop BOOKIE`: its process ends; data stay."""
        await self._bookie(step).stop()
        return []

    async def _start(self, step: Step) -> list[str]:
        """`start BOOKIE`: it is back with its data, at its address."""
        await self._bookie(step).start()
        return []

    async def _mute(self, step: Step) -> list[str]:
        """`mute BOOKIE`: it stores what comes and answers no add."""
        self._bookie(step).mute.add(FrameType.ADD)
        return []

    async def _speak(self, step: Step) -> list[str]:
        """`speak BOOKIE`: it answers again."""
        self._bookie(step).mute.clear()
        return []

    async def _wipe(self, step: Step) -> list[str]:
        """`wipe BOOKIE`: its disk is lost; it comes back empty under a new incarnation (B-25)."""
        bookie = self._bookie(step)
        self._destroyed = True
        await bookie.unregister()
        bookie.wipe()
        bookie.cut()
        await bookie.register(self.cluster.store, self.cluster.paths)
        return []

    async def _holders(self, step: Step) -> list[str]:
        """`holders ENTRY`: the bookies that have a copy, once Qw do."""
        entry = int(step.args[0])
        quorum = self.writer.metadata.quorum
        await until(lambda: len(self._copies(entry)) >= quorum.write)
        return [" ".join(sorted(self._copies(entry)))]

    def _copies(self, entry: int) -> set[str]:
        ledger = self.writer.ledger_id
        return {b.bookie_id for b in self.cluster.bookies if entry in b.ledger(ledger).entries}

    # --- others ---

    async def _ensembles(self, _step: Step) -> list[str]:
        """`ensembles`: who stores which entries, as the writer has it."""
        return [
            f"from {first}: {' '.join(sorted(member.bookie_id for member in members))}"
            for first, members in self.writer.metadata.fragments
        ]

    async def _recover(self, step: Step) -> list[str]:
        """`recover CLIENT`: it fences the ledger, finds its end and closes it."""
        (name,) = step.args
        closed = await (await self._client(name)).recover_ledger(self.writer.ledger_id)
        return [f"last entry {closed.last_entry}"]

    async def _read(self, step: Step) -> list[str]:
        """`read CLIENT`: every entry up to the last one that is confirmed."""
        (name,) = step.args
        reader = await (await self._client(name)).open_reader(self.writer.ledger_id)
        try:
            last = await reader.last_add_confirmed()
            found: list[str] = []
            while len(found) <= last:
                count = last + 1 - len(found)
                first = EntryId(len(found))
                entries = await reader.read(first, max_count=count, max_bytes=READ_BYTES)
                found += [bytes(payload_of(entry)).decode() for entry in entries]
            return [f"{entry} {value}" for entry, value in enumerate(found)]
        finally:
            await reader.close()

    # --- promises ---

    async def judge(self) -> None:
        """INV-1: confirmed means stored at Qa bookies."""
        if self._writer is None or self._destroyed:
            return
        quorum = self.writer.metadata.quorum
        for add in self._adds:
            if add.fate == CONFIRMED:
                copies = self._copies(add.entry)
                assert len(copies) >= quorum.ack, f"{add.value} is only at {copies}"

    async def close(self) -> None:
        """End everything."""
        if self._made is not None:
            await self._made.close()
