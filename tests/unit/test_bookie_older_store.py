"""A metadata store that forgot what it had confirmed is refused by the bookies (ADR 23)."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from octavo.bookie.identity import CONFIRMED_COOKIE_FILE, BootKind, judge_cookies
from octavo.metadata.bookies import Cookie
from octavo.metadata.envelope import seal
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.paths import Paths
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.proto.bookie_wire import Status
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import HistoryInDoubt
from tests.bookie_rig import ROOT, BookieRig, entry

ENTROPY = SeededEntropy(5)
NOW = Cookie("b1", "cluster", ENTROPY.uuid(), {"data": "dir"}, (), 4, (4, 4096))
RENEWED = replace(
    NOW, incarnation=ENTROPY.uuid(), directories={"data": "new"}, salvage=(NOW.incarnation,)
)


def judge(stored: Cookie, local: Cookie | None, confirmed: Cookie | None) -> BootKind:
    return judge_cookies(
        "b1", "cluster", stored, local, directory_empty=False, confirmed=confirmed
    ).kind


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (NOW, BootKind.NORMAL),
        (replace(NOW, boot_counter=5, durable_up_to=(5, 64)), BootKind.DOUBTFUL),
        (replace(NOW, durable_up_to=(4, 8192)), BootKind.NORMAL),
        (replace(NOW, boot_counter=3), BootKind.OLDER_STORE),
        (replace(NOW, durable_up_to=(4, 4095)), BootKind.OLDER_STORE),
        (replace(NOW, durable_up_to=(0, 0)), BootKind.OLDER_STORE),
    ],
)
def test_b27_a_store_is_never_older_than_what_it_confirmed(stored: Cookie, kind: BootKind) -> None:
    assert judge(stored, NOW, NOW) is kind


def test_b25_b27_a_store_from_before_a_renewal() -> None:
    """Not "the directory is of an older incarnation", whose hint would cost the copies."""
    assert judge(NOW, RENEWED, None) is BootKind.OLDER_STORE
    assert judge(NOW, None, RENEWED) is BootKind.OLDER_STORE
    assert judge(RENEWED, RENEWED, NOW) is BootKind.NORMAL, "what was confirmed is older"


@pytest_asyncio.fixture
async def rig(tmp_path: pathlib.Path) -> AsyncIterator[BookieRig]:
    async with BookieRig(tmp_path / "data", registration_wait_s=0.0) as made:
        yield made


def cookie_bytes(rig: BookieRig) -> bytes:
    return rig.cluster.snapshot()[Paths(ROOT).cookie("bookie-1")].value


async def go_back(rig: BookieRig) -> int:
    """A copy of the store is made while all is stopped, and put back after another life in which
    something was acknowledged; returns the ledger."""
    ledger = await rig.ledger()
    assert await rig.add(entry(ledger, 0)) == [Status.OK]
    await rig.stop()
    copy = cookie_bytes(rig)
    await rig.start()
    assert await rig.add(entry(ledger, 1)) == [Status.OK]
    await rig.stop()
    rig.cluster.corrupt(Paths(ROOT).cookie("bookie-1"), seal(copy))
    return ledger


async def test_b27_an_older_copy_of_the_metadata_is_refused_and_has_a_way_out(
    rig: BookieRig,
) -> None:
    ledger = await go_back(rig)
    for _ in range(2):
        with pytest.raises(HistoryInDoubt, match="went back") as caught:
            await rig.start()
        assert "accept_older_metadata" in caught.value.hint
        assert "accept_data_loss" not in caught.value.hint
    incarnation = Cookie.from_bytes(cookie_bytes(rig)).incarnation
    await rig.start(accept_older_metadata=True)
    for entry_id in (0, 1):
        found = await rig.read(ledger, entry_id)
        assert found == (Status.OK, [entry(ledger, entry_id)])
    await rig.stop()
    await rig.start(accept_older_metadata=False)
    assert rig.server.incarnation == incarnation


async def test_inv11_i1_ids_given_since_the_copy_are_not_given_again(rig: BookieRig) -> None:
    paths, clock = Paths(ROOT), rig.clock
    store = rig.cluster.connect()
    drawn = [await LedgerIdAllocator(store, paths, clock).allocate() for _ in range(5)]
    producers = [await ProducerIdAllocator(store, paths, clock).allocate() for _ in range(5)]
    await go_back(rig)
    for key in (paths.idgen_epoch(0), paths.producer_ids):
        rig.cluster.force_version(key, 1)
    await rig.start(accept_older_metadata=True)
    assert await LedgerIdAllocator(store, paths, clock).allocate() > max(drawn)
    assert await ProducerIdAllocator(store, paths, clock).allocate() > max(producers)


@pytest.mark.parametrize("damage", ["absent", "empty", "other"])
async def test_b27_a_lost_confirmation_is_no_doubt(rig: BookieRig, damage: str) -> None:
    ledger = await rig.ledger()
    assert await rig.add(entry(ledger, 0)) == [Status.OK]
    await rig.stop()
    path = rig.data_dir / CONFIRMED_COOKIE_FILE
    assert path.exists()
    path.unlink()
    if damage == "empty":
        path.touch()
    elif damage == "other":
        shutil.copy(rig.data_dir / "cookie.first", path)
    await rig.start()
    assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0)])
