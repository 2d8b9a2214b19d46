"""`octavo doctor`: each check on a machine where it is right and where it is wrong."""

from __future__ import annotations

import json
import pathlib
import resource
import socket
from collections.abc import Iterator

import pytest

from octavo.cli import checkup
from octavo.cli.doctor import exit_code_of
from octavo.cli.failures import ExitCode
from octavo.cli.finding import Finding, Verdict
from octavo.cli.program import run
from octavo.cli.session import PROXY_VARIABLE
from tests.fake_broker import FakeClusterThread


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    yield thread
    thread.stop()


def rows_of(text: str) -> dict[str, tuple[str, str | None]]:
    return {row["check"]: (row["verdict"], row["next_step"]) for row in json.loads(text)}


def test_a_cluster_that_answers_is_ok_to_the_last_step(
    fake: FakeClusterThread, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--data", str(tmp_path / "none"), "-b", fake.bootstrap]
    assert run([*words, "-o", "json"]) == ExitCode.OK
    rows = rows_of(capsys.readouterr().out)
    for check in ("python", "connection", "broker", "metadata", "bookies"):
        assert rows[check] == ("ok", None)
    assert "disk syncs" in rows
    assert not list(tmp_path.iterdir()), "it only looks"
    assert run(words) == ExitCode.OK
    assert "ok    bookies: 3 of 3 take records, each goes to 3\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bootstrap", "check", "words"),
    [
        ("127.0.0.1:1", "connection", "refused"),
        ("nowhere.invalid:7650", "name", "nowhere.invalid"),
        ("http://localhost:7650", "address", "is a URL"),
    ],
)
def test_the_first_step_that_fails_is_named(bootstrap: str, check: str, words: str) -> None:
    *_, last = checkup.cluster(bootstrap, 2.0)
    assert (last.check, last.verdict) == (check, Verdict.FAIL)
    assert words in last.found
    assert last.next_step


def test_a_port_that_is_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        findings = list(checkup.cluster(f"127.0.0.1:{port}", 0.5))
    assert [one.verdict for one in findings] == [Verdict.OK, Verdict.FAIL]
    assert findings[-1].check == "broker"
    capsys.readouterr()


def test_exit_codes() -> None:
    fine = Finding("a", Verdict.OK, "")
    warned = Finding("a", Verdict.WARN, "", "do it")
    here = Finding("a", Verdict.FAIL, "", "do it")
    there = Finding("a", Verdict.FAIL, "", "do it", of_cluster=True)
    assert exit_code_of([fine, warned]) == ExitCode.OK
    assert exit_code_of([fine, there]) == ExitCode.UNAVAILABLE
    assert exit_code_of([there, here]) == ExitCode.ERROR


def test_java_is_found_old_or_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert next(checkup.java()).verdict is Verdict.WARN
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    said = {'version "1.8.0_412"': Verdict.WARN, 'version "17.0.9" 2023': Verdict.OK}
    said["what?"] = Verdict.WARN
    for text, verdict in said.items():
        program.write_text(f"#!/bin/sh\necho 'openjdk {text}' >&2\n")
        program.chmod(0o755)
        finding = next(checkup.java())
        assert finding.verdict is verdict
        assert bool(finding.next_step) == (verdict is Verdict.WARN)


def test_few_open_files_and_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", few)
    assert next(checkup.open_files()).verdict is Verdict.WARN
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv(PROXY_VARIABLE, raising=False)
    assert "http_proxy" in next(checkup.proxies()).found
    monkeypatch.setenv(PROXY_VARIABLE, "true")
    assert next(checkup.proxies()).verdict is Verdict.WARN


def few(_which: int) -> tuple[int, int]:
    return 256, 1024


def test_a_damaged_data_folder_fails(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    (finding,) = checkup.ports(tmp_path)
    assert finding.verdict is Verdict.FAIL
    assert "damaged" in finding.found


def test_a_data_folder_that_is_a_file_is_measured_beside_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert [one.check for one in checkup.disk(tmp_path / "file" / "x")][-1] == "clock"
