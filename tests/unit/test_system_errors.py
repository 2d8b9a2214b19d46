"""What the system's errors say to a person: which path, what, and what to do."""

from __future__ import annotations

import errno
import os
import pathlib
import socket

import pytest

from octavo.cli.failures import ExitCode, report
from octavo.cli.program import run
from octavo.runtime.errors import IllegalStateError
from octavo.runtime.system_errors import HINTS, explained, naming
from octavo.supervisor import ports
from octavo.supervisor.child import Child, Complaint
from octavo.supervisor.cluster_file import ClusterFile, write_cluster_file
from octavo.supervisor.lock import DataDirLock
from octavo.supervisor.spec import ChildSpec


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_errno_has_a_cause_with_the_path_and_a_hint(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    report(OSError(number, os.strerror(number), "/data/q"))
    cause, hint = capsys.readouterr().err.splitlines()
    assert cause == f"error: /data/q: {os.strerror(number)}"
    assert hint.startswith("hint: ")
    assert len(hint) > 20


def test_the_common_ones_say_what_to_do() -> None:
    assert "make room" in HINTS[errno.ENOSPC]
    assert "owner and mode" in HINTS[errno.EACCES]
    assert "read-only" in HINTS[errno.EROFS]
    assert "another port" in HINTS[errno.EADDRINUSE]


def test_errors_without_a_path_get_one_and_keep_their_class() -> None:
    with pytest.raises(PermissionError) as caught, naming("some/file"):
        raise OSError(errno.EACCES, "Permission denied")
    assert explained(caught.value)[0] == "some/file: Permission denied"
    with pytest.raises(OSError, match="other") as kept, naming("some/file"):
        raise OSError(errno.EIO, "Input/output error", "other")
    assert kept.value.filename == "other"


def test_a_note_of_the_place_that_raised_is_the_hint() -> None:
    error = FileNotFoundError(errno.ENOENT, "no cluster was started here", "q")
    error.add_note("start one")
    assert explained(error) == ("q: no cluster was started here", "start one")


def test_bare_timeouts_speak_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(TimeoutError()) == ExitCode.TIMEOUT
    assert "--timeout" in capsys.readouterr().err


# --- a full disk, no rights and taken ports under `octavo up` -------------------------------------


def test_writes_without_space_name_their_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cluster.json.new").symlink_to("/dev/full")
    cluster = ClusterFile(
        supervisor_pid=0,
        supervisor_started=0.0,
        bootstrap_servers="",
        metadata="",
        metadata_log="",
        children=(),
        bookies=1,
        brokers=1,
        folder="",
    )
    with pytest.raises(OSError, match="No space left") as caught:
        write_cluster_file(tmp_path, cluster)
    assert str(caught.value.filename).endswith("cluster.json.new")
    (tmp_path / ".lock").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"\.lock"):
        DataDirLock(tmp_path).acquire()


@pytest.mark.parametrize("detach", [(), ("--detach",)], ids=["foreground", "detach"])
@pytest.mark.parametrize("kind", ["file", "long", "full"])
def test_up_in_a_folder_that_cannot_be(
    kind: str, detach: tuple[str, ...], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"file": tmp_path / "file", "long": tmp_path / ("x" * 300), "full": tmp_path / "d"}[kind]
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "d" / "logs").mkdir(parents=True)
    (tmp_path / "d" / ".lock").symlink_to("/dev/full")
    (tmp_path / "d" / "logs" / "up.log").symlink_to("/dev/full")
    assert run(["up", "--port", "0", "--data", str(data), *detach]) == ExitCode.ERROR
    lines = [line for line in capsys.readouterr().err.splitlines() if "starting" not in line]
    assert lines[0].startswith(f"error: {data}")
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2


def test_a_port_that_this_user_may_not_have_is_not_called_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(_self: socket.socket, _address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", denied)
    with pytest.raises(PermissionError) as caught:
        ports.require_free("127.0.0.1", [80])
    assert report(caught.value) == ExitCode.DENIED
    cause, hint = capsys.readouterr().err.splitlines()
    assert cause == "error: port 80: you may not listen on it"
    assert "--port N" in hint


def test_an_address_of_another_machine_is_not_called_taken() -> None:
    with pytest.raises(IllegalStateError, match=r"cannot listen on 192\.0\.2\.1:7650"):
        ports.require_free("192.0.2.1", [7650])


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        ("starting\nerror: the disk is full\nhint: make room\n", ("the disk is full", "make room")),
        ("error: first\nerror: second\n", ("second", "")),
        (
            "timestamp='t' level='error' event='bookie-refused' cause=\"it's full\" hint='free it'",
            ("it's full", "free it"),
        ),
        ("timestamp='t' level='info' event='x' cause='no reason'\nlast", ("last", "")),
        (
            '{"level": "error", "event": "x", "cause": "it\'s \\"full\\"", "hint": "free it"}\n{}',
            ('it\'s "full"', "free it"),
        ),
        ('{"level": "info", "cause": "none"}\n{"level": "err', ('{"level": "err', "")),
        ("", ("it logged nothing", "")),
    ],
)
def test_the_reason_of_a_child_is_what_its_log_says(
    log: str, wanted: tuple[str, str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    spec = ChildSpec(
        role="bookie",
        name="bookie-1",
        host="h",
        port=1,
        control_port=2,
        metadata_url="",
        data_dir=tmp_path,
        log=path,
        settings={},
    )
    assert Child(spec).complaint() == Complaint(*wanted)
