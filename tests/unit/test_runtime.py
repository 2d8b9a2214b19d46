"""Clock, tasks, settings, back-off and disk of the runtime layer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from octavo.runtime.clock import ManualClock
from octavo.runtime.config import FrozenSettings
from octavo.runtime.disk import IOV_MAX, RealDisk
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import ConfigError, InvariantViolation
from octavo.runtime.ids import Member
from octavo.runtime.invariant import invariant
from octavo.runtime.malloc import tune_malloc
from octavo.runtime.process import STOP_SIGNALS, handled_signals
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner


async def test_manual_clock_wakes_sleepers_in_order_of_their_time() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("late", 2))
        group.create_task(sleeper("early", 1))
        await asyncio.sleep(0)
        clock.advance(5)
    assert woken == ["early", "late"]


async def test_task_owner_reports_a_failure_and_ends_the_rest() -> None:
    failures: list[tuple[str, BaseException]] = []
    owner = TaskOwner("part", lambda name, error: failures.append((name, error)))
    started = asyncio.Event()

    async def broken() -> None:
        raise InvariantViolation("boom")

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    task = owner.spawn(endless(), name="endless")
    failed = owner.spawn(broken(), name="broken")
    await started.wait()
    await asyncio.wait([failed])
    await owner.close()
    assert task.cancelled()
    assert [(name, str(type(error).__name__)) for name, error in failures] == [
        ("part:broken", "InvariantViolation")
    ]
    with pytest.raises(RuntimeError, match="closed"):
        owner.spawn(endless(), name="too late")


class _Settings(FrozenSettings):
    """Some fields for the tests below."""

    queue_max_bytes: int = 5
    name: str = "x"
    bound: int | None = 3


def test_settings_refuse_unknown_keys_with_a_suggestion_and_bad_values_by_name() -> None:
    assert _Settings.load(queue_max_bytes=7, name=None).queue_max_bytes == 7
    with pytest.raises(ConfigError, match="queue_max_bytes") as caught:
        _Settings.load(queue_max_byte=1)
    assert "did you mean 'queue_max_bytes'?" in caught.value.hint
    with pytest.raises(ConfigError, match="queue_max_bytes"):
        _Settings.load(queue_max_bytes="many")


def test_none_in_the_environment_is_none_where_a_setting_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCTAVO_BOUND", "none")
    assert _Settings.load().bound is None
    monkeypatch.setenv("OCTAVO_BOUND", "7")
    assert _Settings.load().bound == 7
    monkeypatch.setenv("OCTAVO_QUEUE_MAX_BYTES", "none")
    with pytest.raises(ConfigError, match="queue_max_bytes"):
        _Settings.load()


def test_backoff_doubles_up_to_its_bound_and_starts_again_after_reset() -> None:
    backoff = Backoff(SeededEntropy(1), initial_s=0.1, max_s=1.0, jitter=0.0)
    assert [round(backoff.next_s(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == pytest.approx(0.1)


def test_invariant_survives_optimised_mode() -> None:
    code = "from octavo.runtime.invariant import invariant; invariant(False, 'kept')"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "kept" in done.stderr
    invariant(True, "never raised")


def test_disk_appends_more_buffers_than_one_writev_takes(tmp_path: pathlib.Path) -> None:
    disk = RealDisk()
    path = tmp_path / "segment"
    appender = disk.create(path, preallocate_bytes=1 << 16)
    buffers = [bytes([n % 251]) * 3 for n in range(IOV_MAX * 2 + 5)]
    appender.write(buffers)
    appender.sync()
    assert appender.position == sum(map(len, buffers))
    appender.close()
    assert disk.read(path)[: appender.position] == b"".join(buffers)
    with pytest.raises(FileExistsError):
        disk.create(path, preallocate_bytes=0)


def test_disk_replace_leaves_either_the_old_or_the_new_file(tmp_path: pathlib.Path) -> None:
    disk = RealDisk()
    path = tmp_path / "cookie"
    disk.replace(path, b"one")
    disk.replace(path, b"two")
    assert disk.read(path) == b"two"
    assert disk.list(tmp_path) == ["cookie"]
    free, total = disk.free_bytes(tmp_path)
    assert 0 < free <= total
    disk.unlink(path)
    assert not os.path.exists(path)


def test_member_text_round_trip_and_refusal() -> None:
    member = Member("bookie-1@rack", SeededEntropy(3).uuid())
    assert Member.parse(str(member)) == member
    with pytest.raises(ValueError, match="not an ensemble member"):
        Member.parse("nonsense")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt exists in glibc only")
def test_malloc_tuning_is_in_force() -> None:
    code = "from octavo.runtime.malloc import tune_malloc; import sys; sys.exit(not tune_malloc())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    os.environ["OCTAVO_MALLOC_TUNING"] = "0"
    try:
        assert tune_malloc() is False
    finally:
        del os.environ["OCTAVO_MALLOC_TUNING"]


def test_disk_reads_only_what_was_written_of_a_preallocated_file(tmp_path: pathlib.Path) -> None:
    disk = RealDisk()
    path = tmp_path / "segment"
    appender = disk.create(path, preallocate_bytes=64 << 20)
    assert disk.read(path).strip(b"\0") == b""
    appender.write([b"x" * 10_000])
    appender.sync()
    data = disk.read(path)
    assert data.rstrip(b"\0") == b"x" * 10_000
    appender.close()


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_works_again_after_a_loop_handled_it(
    run: Callable[[Coroutine[None, None, None]], None], *, fails: bool
) -> None:
    """A loop that is closed leaves a handler behind that does nothing."""
    before = [signal.getsignal(number) for number in STOP_SIGNALS]

    async def body() -> None:
        told = asyncio.Event()
        with handled_signals(STOP_SIGNALS, told.set):
            signal.raise_signal(signal.SIGTERM)
            await told.wait()
            if fails:
                raise BrokenPipeError

    with contextlib.nullcontext() if not fails else pytest.raises(BrokenPipeError):
        run(body())
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_server_leaves_signals_as_it_found_them() -> None:
    program = """
import signal
from octavo.runtime.process import run_server

async def main(stop):
    signal.raise_signal(signal.SIGTERM)
    await stop.wait()
    return 3

assert run_server(main) == 3
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
