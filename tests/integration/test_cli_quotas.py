"""`octavo quotas …` against a real broker in this process: what it prints, says and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from tests.group_cluster import GroupCluster


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    made = GroupCluster(brokers=1)
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", made.bootstrap)
    try:
        yield made.bootstrap
    finally:
        made.close()


@pytest.mark.usefixtures("bootstrap")
def test_x24_quotas_are_set_listed_and_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> dict[str, dict[str, object]]:
        assert run(["quotas", "list", "-o", "json"]) == ExitCode.OK
        found = json.loads(capsys.readouterr().out)
        return {str(one.pop("client")): one for one in found}

    none = dict.fromkeys(("bytes_in_per_s", "bytes_out_per_s", "requests_per_s", "connections"))
    assert rows() == {"(default)": dict.fromkeys(none, 0)}
    assert run(["quotas", "set", "app", "--bytes-in", "1000", "--connections", "3"]) == ExitCode.OK
    assert "quotas of app are set" in capsys.readouterr().err
    assert run(["quotas", "set", "app", "--requests", "0"]) == ExitCode.OK
    capsys.readouterr()
    mine = none | {"bytes_in_per_s": 1000, "connections": 3, "requests_per_s": 0}
    assert rows()["app"] == mine
    assert run(["quotas", "list"]) == ExitCode.OK
    heading, default, app = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "CLIENT"
    assert default.replace("no limit", "-").split() == ["(default)", *"----"]
    assert app.replace("no limit", "-").split() == ["app", "1000", "default", "-", "3"]
    assert run(["quotas", "unset", "app"]) == ExitCode.OK
    assert "no quotas of its own" in capsys.readouterr().err
    assert set(rows()) == {"(default)"}


@pytest.mark.usefixtures("bootstrap")
def test_what_sets_nothing_or_nonsense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quotas", "set", "app"]) == ExitCode.USAGE
    assert "--bytes-in" in capsys.readouterr().err
    assert run(["quotas", "set", "app", "--bytes-in=-1"]) != ExitCode.OK
    assert "bytes_in_per_s" in capsys.readouterr().err
    assert run(["quotas", "set", "x" * 300, "--bytes-in", "1"]) != ExitCode.OK
    assert "limit 200" in capsys.readouterr().err
