"""`octavo bookies` and `autorecovery --disable` over a metadata store alone: what is refused, said.

The store lives in this process (`memory://`); no bookie runs, so that every bookie is away.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable

import pytest
from typer.testing import CliRunner

from octavo.cli import bookies
from octavo.cli.app import app
from octavo.client.autorecovery.operator import Operator, operating
from octavo.metadata.bookies import BookieRegistrar, BookieRegistration, Cookie
from octavo.metadata.ledgers import Quorum
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import AuditReport, BookieHold, HoldKind, RepairMark
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    BookieUnavailable,
    IllegalStateError,
    InvalidRequest,
    MetadataCorrupt,
    NotEnoughBookies,
    RequestTimedOut,
)
from octavo.runtime.ids import LedgerId, Member

MEMBERS = [Member(f"bookie-{n}", uuid.UUID(int=n)) for n in (1, 2, 3, 4)]


@pytest.fixture
def store() -> str:
    """A cluster of four bookies and one ledger on the first three."""
    url = f"memory://{uuid.uuid4().hex}/octavo"

    async def fill(operator: Operator) -> None:
        cluster = await operator.cookies.cluster_id()
        for name, incarnation in MEMBERS:
            await operator.cookies.create_cookie(Cookie(name, cluster, incarnation))
        await operator.client.catalog.create(Quorum(3, 3, 2), MEMBERS[:3])

    with_operator(url, fill)
    return url


def with_operator(url: str, do: Callable[[Operator], Awaitable[None]]) -> None:
    async def run() -> None:
        async with operating(url) as operator:
            await do(operator)

    asyncio.run(run())


def octavo(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def rows_of(url: str) -> dict[str, dict[str, object]]:
    text = octavo("bookies", "list", "--metadata", url, "-o", "json")
    return {row["bookie"]: row for row in json.loads(text)}


def test_every_bookie_is_listed_whether_it_is_there_or_not(store: str) -> None:
    rows = rows_of(store)
    assert [row["ledgers"] for row in rows.values()] == [1, 1, 1, 0]
    assert {row["state"] for row in rows.values()} == {"away"}
    assert "no auditor has looked" in octavo("bookies", "list", "--metadata", store)


def test_the_list_says_what_the_last_look_found(store: str) -> None:
    async def tell(operator: Operator) -> None:
        await operator.repairs.mark(RepairMark(LedgerId(1), short=True))
        await operator.repairs.set_report(AuditReport(operator.clock.wall_ms(), 9, 2, 1, 3, "b"))

    with_operator(store, tell)
    text = octavo("bookies", "list", "--metadata", store)
    assert "2 ledgers of 9 lacked copies, 4 could not be looked at" in " ".join(text.split())
    assert "1 ledger wait for copies" in " ".join(text.split())


@pytest.mark.parametrize(
    ("hosts", "domains", "said"),
    [
        ("aa", ("", ""), "2 writable bookies on 1 host: the copies of a record lie on it"),
        ("ab", ("", ""), "on 2 hosts: the copies of a record lie on different ones while"),
        ("ab", ("r1", "r2"), "2 writable bookies on 2 hosts in 2 fault domains: the copies"),
    ],
)
def test_the_list_says_how_far_apart_copies_can_be(
    store: str, hosts: str, domains: tuple[str, str], said: str
) -> None:
    """3.8: a bookie for each disk of a machine."""

    async def look(operator: Operator) -> None:
        for member, host, domain in zip(MEMBERS[:2], hosts, domains, strict=True):
            place = BookieRegistration(*member, f"{host}:1", fault_domain=domain)
            registrar = BookieRegistrar(
                operator.store,
                Paths("/octavo"),
                place,
                clock=SystemClock(),
                entropy=SystemEntropy(),
            )
            await registrar.register()
        await operator.client.directory.refresh()
        assert any(said in note for note in await bookies._notes(operator))  # pyright: ignore[reportPrivateUsage]

    with_operator(store, look)


def test_a_bookie_is_held_and_released(store: str) -> None:
    octavo("bookies", "readonly", "bookie-1", "--metadata", store)
    assert rows_of(store)["bookie-1"]["hold"] == "readonly"
    octavo("bookies", "readonly", "bookie-1", "--metadata", store)
    octavo("bookies", "writable", "bookie-1", "--metadata", store)
    assert rows_of(store)["bookie-1"]["hold"] is None
    octavo("bookies", "writable", "bookie-1", "--metadata", store)


@pytest.mark.parametrize("command", ["readonly", "writable", "decommission"])
def test_an_unknown_bookie_is_refused_with_those_that_are_known(store: str, command: str) -> None:
    with pytest.raises(InvalidRequest, match="no bookie called 'b9'") as caught:
        octavo("bookies", command, "b9", "--metadata", store)
    assert caught.value.hint == "known: bookie-1, bookie-2, bookie-3, bookie-4"


def test_a_drain_is_not_turned_into_less_by_mistake(store: str) -> None:
    async def hold(operator: Operator) -> None:
        await operator.repairs.hold(BookieHold(MEMBERS[0], HoldKind.DRAINING))
        await operator.repairs.hold(BookieHold(MEMBERS[1], HoldKind.RETIRED))

    with_operator(store, hold)
    with pytest.raises(IllegalStateError, match="being decommissioned"):
        octavo("bookies", "readonly", "bookie-1", "--metadata", store)
    with pytest.raises(IllegalStateError, match="for good"):
        octavo("bookies", "writable", "bookie-2", "--metadata", store)


def test_a_decommissioning_that_nobody_would_carry_out_is_refused(store: str) -> None:
    with pytest.raises(IllegalStateError, match="no process runs autorecovery"):
        octavo("bookies", "decommission", "bookie-1", "--metadata", store)
    octavo("autorecovery", "--disable", "--metadata", store)
    assert "switched off" in octavo("bookies", "list", "--metadata", store)
    with pytest.raises(IllegalStateError, match="autorecovery is switched off"):
        octavo("bookies", "decommission", "bookie-1", "--metadata", store)
    octavo("autorecovery", "--enable", "--metadata", store)
    assert "switched off" not in octavo("bookies", "list", "--metadata", store)
    assert rows_of(store)["bookie-1"]["hold"] is None, "a refusal decides nothing"


def decommissioned(url: str, writable: list[Member], name: str, *, damage: bool = False) -> None:
    """Decommission while these bookies are registered and somebody is the auditor."""

    async def run(operator: Operator) -> None:
        await operator.repairs.elect(b"somebody")
        registrars = [
            BookieRegistrar(
                operator.store,
                Paths("/octavo"),
                BookieRegistration(member.bookie_id, member.incarnation, "127.0.0.1:1"),
                clock=SystemClock(),
                entropy=SystemEntropy(),
            )
            for member in writable
        ]
        for registrar in registrars:
            await registrar.register()
        if damage:
            key = Paths("/octavo").ledger(LedgerId(99))
            await operator.store.create(key, b"\xff")
        try:
            await operator.decommission(name, timeout_s=0.01, on_progress=lambda _: None)
        finally:
            for registrar in registrars:
                await registrar.close()

    with_operator(url, run)


def test_too_few_others_are_refused(store: str) -> None:
    with pytest.raises(NotEnoughBookies, match="without it 2 bookies take records") as caught:
        decommissioned(store, MEMBERS[:3], "bookie-1")
    assert caught.value.hint == "start another bookie first"


def test_a_record_that_cannot_be_read_stops_it(store: str) -> None:
    """M-7: nobody knows whom it names."""
    with pytest.raises(MetadataCorrupt, match="1 ledger records cannot be read"):
        decommissioned(store, MEMBERS, "bookie-4", damage=True)


def test_a_bookie_that_is_named_is_not_let_go(store: str) -> None:
    """B-29: without workers its ledger stays where it is, and so does its cookie."""
    with pytest.raises(RequestTimedOut, match="1 ledgers name bookie-1 still"):
        decommissioned(store, MEMBERS, "bookie-1")
    rows = rows_of(store)
    assert rows["bookie-1"]["hold"] == "draining"
    assert rows["bookie-1"]["state"] == "away"


def test_615_a_scrub_is_asked_of_bookies_that_are_there(store: str) -> None:
    assert octavo("bookies", "scrub", "--metadata", store, "-o", "json") == "[]\n"
    with pytest.raises(BookieUnavailable, match="bookie-1 is away"):
        octavo("bookies", "scrub", "bookie-1", "--now", "--metadata", store)
    with pytest.raises(InvalidRequest, match="bookie-9"):
        octavo("bookies", "scrub", "bookie-9", "--metadata", store)
