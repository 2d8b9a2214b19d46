"""Names of topics after a Tab: from the cluster, bounded, and never a word on the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fake_broker import FakeClusterThread


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    thread.call(
        lambda: [thread.cluster.create(name) for name in ("orders", "order-lines", "bills")]
    )
    yield thread
    thread.stop()


def complete(bootstrap: str, line: str, shell: str = "bash") -> tuple[list[str], str]:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    if shell != "bash":
        words = {"_TYPER_COMPLETE_ARGS": line}
        if shell == "fish":
            words["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run(
        [sys.executable, "-c", "from octavo.__main__ import main; main()"],
        env={
            **os.environ,
            "_OCTAVO_COMPLETE": f"complete_{shell}",
            "OCTAVO_BOOTSTRAP_SERVERS": bootstrap,
            **words,
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    "command",
    ["consume", "produce", "export", "topic describe", "topic delete", "ledger list --topic"],
)
def test_topics_are_offered_where_a_topic_is_named(fake: FakeClusterThread, command: str) -> None:
    found, said = complete(fake.bootstrap, f"octavo {command} ord")
    assert (sorted(found), said) == (["order-lines", "orders"], "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells(fake: FakeClusterThread, shell: str) -> None:
    found, said = complete(fake.bootstrap, "octavo consume ord", shell)
    assert {"order-lines", "orders"} <= {
        name.strip("\"'") for name in " ".join(found).replace("(", " ").replace(")", " ").split()
    }
    assert said == ""


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "nowhere.invalid:7650", "http://x:1", ""])
def test_without_a_cluster_nothing_is_offered_and_nothing_said(bootstrap: str) -> None:
    found, said = complete(bootstrap or "127.0.0.1:1", "octavo consume ord")
    assert (found, said) == ([], "")
