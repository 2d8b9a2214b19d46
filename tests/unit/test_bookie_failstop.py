"""A bookie whose promises or disk broke: it stops, answers nothing more, and says so by its exit
code (spec/ledger.md B-8)."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from octavo.bookie.config import BookieConfig
from octavo.bookie.process import EXIT_FAILED, EXIT_OK, serve_with
from octavo.bookie.server import BookieServer
from octavo.bookie.store import BookieStore
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import InvariantViolation, MetadataUnavailable
from octavo.runtime.tasks import TaskOwner
from tests.bookie_rig import DEADLINE_S, ROOT, BookieRig, entry, until


@pytest_asyncio.fixture
async def rig(tmp_path: pathlib.Path) -> AsyncIterator[BookieRig]:
    async with BookieRig(tmp_path / "data") as made:
        yield made


async def failure(rig: BookieRig) -> BaseException:
    return await asyncio.wait_for(asyncio.shield(rig.server.failed), DEADLINE_S)


def broken(_statuses: object) -> None:
    raise InvariantViolation("a promise of our own is broken")


@pytest.mark.parametrize("error", [InvariantViolation("a promise"), KeyError("unforeseen")])
async def test_an_acknowledgement_that_raises_stops_the_bookie(
    rig: BookieRig, error: Exception
) -> None:
    """The rest of the group is not answered: its connections are dropped."""
    ledger = await rig.ledger()
    assert await rig.add(entry(ledger, 0)) == [Status.OK]
    client = await rig.client()

    def raising(_statuses: object) -> None:
        raise error

    rig.disk.gate.clear()  # what follows meets in one group
    store = rig.server.store
    store.add([entry(ledger, 1)], 50, recovery=False, reply=raising)
    client.send_add(5, entry(ledger, 2))
    await until(lambda: store._journal.queued_records == 2)  # pyright: ignore[reportPrivateUsage]
    rig.disk.gate.set()
    assert await failure(rig) is error
    assert not rig.server.ready
    assert await client.closed(), "unanswered, not answered wrongly"
    ledger_data = await rig.crash()
    assert ledger_data.ready
    assert await rig.read(ledger, 0, 3) == (Status.OK, [entry(ledger, i) for i in range(3)])


async def test_an_index_callback_that_raises_stops_the_bookie(
    rig: BookieRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await rig.ledger()
    monkeypatch.setattr(BookieStore, "on_visible", broken_visible)
    await rig.add(entry(ledger, 0))
    assert isinstance(await failure(rig), InvariantViolation)


def broken_visible(_store: BookieStore, _items: object) -> None:
    broken(None)


@pytest.mark.parametrize("where", ["add", "settle", "request"])
async def test_a_broken_promise_while_deciding_stops_the_bookie(
    rig: BookieRig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    ledger = await rig.ledger()
    client = await rig.client()
    if where == "add":
        monkeypatch.setattr("octavo.bookie.store.plan_adds", broken_call)
        client.send_add(1, entry(ledger, 0))
    elif where == "settle":
        monkeypatch.setattr("octavo.bookie.undecided.judge_add", broken_call)
        client.send_add(1, entry(ledger, 0))
    else:
        monkeypatch.setattr(BookieStore, "read", broken_later)
        with pytest.raises(ConnectionError):
            await client.read(ledger, 0)
    assert isinstance(await failure(rig), InvariantViolation)
    assert await client.closed()


def broken_call(*_arguments: object, **_named: object) -> None:
    broken(None)


async def broken_later(*_arguments: object, **_named: object) -> None:
    broken(None)


async def run_process(rig: BookieRig, act: Callable[[BookieServer, asyncio.Event], object]) -> int:
    """The exit code of a bookie process over the rig's disk and store, `act` done once it
    serves."""
    config = BookieConfig.load(
        bookie_id="bookie-1", data_dir=rig.data_dir, metadata_url=f"memory://rig{ROOT}"
    )
    server = BookieServer(
        config,
        store=rig.cluster.connect(),
        clock=rig.clock,
        entropy=rig.entropy,
        disk=rig.disk,
    )
    stop = asyncio.Event()
    running = asyncio.ensure_future(serve_with(server, stop))
    await until(lambda: server.ready or running.done())
    act(server, stop)
    return await asyncio.wait_for(running, DEADLINE_S)


async def test_b8_the_exit_code_after_a_failed_sync(tmp_path: pathlib.Path) -> None:
    rig = BookieRig(tmp_path / "data")
    assert await run_process(rig, lambda _server, stop: stop.set()) == EXIT_OK
    tasks = TaskOwner("test")

    def fence(server: BookieServer, _stop: asyncio.Event) -> None:
        rig.disk.fail_sync = True
        tasks.spawn(server.store.fence(1), name="fence")

    assert await run_process(rig, fence) == EXIT_FAILED == 70
    await tasks.close()


async def test_b8_the_exit_code_stays_when_the_stop_fails_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metadata store that is away, or a disk that is broken, while the failed bookie closes."""

    async def away(_self: object) -> None:
        raise MetadataUnavailable("away")

    def act(server: BookieServer, _stop: asyncio.Event) -> None:
        monkeypatch.setattr("octavo.metadata.bookies.BookieRegistrar.close", away)
        server.fail(OSError(5, "injected"))

    assert await run_process(BookieRig(tmp_path / "data"), act) == EXIT_FAILED


async def test_b8_a_failed_sync_while_starting_is_fail_stop(tmp_path: pathlib.Path) -> None:
    rig = BookieRig(tmp_path / "data")
    rig.disk.fail_sync = True
    assert await run_process(rig, lambda _server, _stop: None) == EXIT_FAILED
