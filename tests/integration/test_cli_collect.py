"""`octavo ledger collect` on a real cluster: deleted space returns, and lost metadata keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import time

import pytest
from typer.testing import CliRunner

from octavo import Client
from octavo.cli.app import app
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.paths import Paths
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.ids import LedgerId
from octavo.testing import LocalCluster

WAIT_S = 60.0
SETTINGS: dict[str, object] = {
    "segment_bytes": 1 << 20,
    "gc_interval_s": 2.0,
    "gc_confirm_s": 0.5,
    "compaction_check_s": 1.0,
}


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, f"{found.output}{found.exception or ''}"


def journal_bytes(data: pathlib.Path) -> int:
    total = 0
    for folder in data.glob("bookie-*/journal"):
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as it should be
                total += file.stat().st_blocks * 512
    return total


def wait(condition: object, what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():  # type: ignore[operator]  # pyright: ignore
        assert time.monotonic() < deadline_s, what


async def lose_ledgers(url: str) -> int:
    """Remove every record of a ledger behind everybody's back."""
    store = await connect_store(
        url, client_name="vandal", clock=SystemClock(), entropy=SystemEntropy()
    )
    try:
        paths, gone = Paths(root_of(url)), 0
        todo = [paths.ledgers]
        while todo:
            key = todo.pop()
            children = await store.children(key)
            todo += [f"{key}/{name}" for name in children]
            if not children:
                LedgerId(paths.ledger_id_of(key))
                await store.delete(key, expected=None)
                gone += 1
        return gone
    finally:
        await store.close()


@pytest.mark.process
def test_space_returns_and_lost_metadata_keeps_it() -> None:
    with LocalCluster(
        bookies=1, brokers=1, bookie_settings=SETTINGS, broker_settings={"trash_delay_ms": 0}
    ) as cluster:
        data = str(cluster.data)
        with Client(cluster.bootstrap_servers) as client:
            for name in ("goes", "stays"):
                client.admin.create_topic(name, partitions=1)
                with client.producer() as producer:
                    for _ in range(60):
                        value = os.urandom(100_000)
                        producer.send_nowait(name, value)
                    producer.flush(WAIT_S)
            full = journal_bytes(cluster.data)
            client.admin.delete_topic("goes")
        wait(lambda: journal_bytes(cluster.data) < full - (4 << 20), "the space does not return")
        assert run("ledger", "collect", "--data", data) == (0, "bookie-1 looks now\n")
        code, told = run("ledger", "collect", "bookie-7", "--data", data)
        assert (code != 0, "known: bookie-1" in told) == (True, True)
        code, told = run("ledger", "collect", "--accept-missing", "--data", data)
        assert (code != 0, "add --yes" in told) == (True, True)

        kept = journal_bytes(cluster.data)
        assert asyncio.run(lose_ledgers(cluster.metadata)) >= 1
        run("ledger", "collect", "--data", data)
        wait(lambda: "deletes no ledgers" in run("status", "--data", data)[1], "nobody says why")
        told = run("status", "--data", data)[1]
        assert "missing from the metadata, and 0 deletions were counted" in " ".join(told.split())
        assert journal_bytes(cluster.data) >= kept - (2 << 20)
        code, told = run(
            "ledger", "collect", "bookie-1", "--accept-missing", "--yes", "--data", data
        )
        assert code == 0
        wait(lambda: "deletes no ledgers" not in run("status", "--data", data)[1], "not accepted")
