"""`octavo top`: brokers, bookies, disks and the lag of groups, again and again on one screen."""

from __future__ import annotations

import datetime
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from octavo.cli.failures import ExitCode
from octavo.cli.output import write_text
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.cli.stopping import terminable
from octavo.cli.terminal import is_terminal
from octavo.runtime.error_base import OctavoError
from octavo.runtime.errors_of_groups import GroupIdNotFound

if TYPE_CHECKING:
    from octavo.cli.top_disks import Disk, DiskWatch
    from octavo.cli.top_screen import Look, Reading
    from octavo.client.messaging import Client
    from octavo.client.messaging.api.descriptions import BookieDescription
    from octavo.client.messaging.group_admin.lag import LagHistory
    from octavo.client.messaging.group_admin.values import GroupLag

INTERVAL_S = 2.0
GROUPS_MAX = 100
"""Groups whose lag one look asks for; of the others it says how many there are."""
PLAIN_COLUMNS = 200
"""Width of what is no terminal."""
COLUMNS, LINES = 80, 24
"""Of a terminal that does not say."""
NAMED_MAX = 3
"""Bookies that a line names; more are counted."""
LEFT_S_MIN = 0.05
"""With less time left nothing more is asked for in a look."""
_SHOW = "\x1b[?1049h\x1b[?25l"
_HIDE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

_T = TypeVar("_T")


def top(
    once: Annotated[bool, typer.Option("--once", help="One look as plain text.")] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.2, max=3600)
    ] = INTERVAL_S,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Watch brokers, bookies and the lag of groups on one screen.

    It ends on q or Ctrl-C. Without a terminal, and with --once, one look is printed. Lines that
    begin with ! say what could not be looked at. Rates of groups need a second look. Disks are told
    by the bookies themselves, at their control ports; used is what nobody can write to any more.
    """
    with terminable(), connected(bootstrap, timeout) as client:
        looks = Looks(client, timeout)
        if once or not is_terminal(sys.stdout):
            _print(looks)
            return ExitCode.OK
        try:
            with _screen(), listening() as wait:
                _watch(looks, interval, wait)
        except KeyboardInterrupt:
            return ExitCode.OK
    return ExitCode.OK


def _print(looks: Looks) -> None:
    # Imported here: loads rich.
    from octavo.cli.top_screen import text_of

    write_text(text_of(looks.take(), PLAIN_COLUMNS))


def _watch(looks: Looks, interval_s: float, wait: Callable[[float], bool]) -> None:
    """Until `wait` says that q was pressed; a look that takes long delays the next."""
    # Imported here: loads rich.
    from octavo.cli.top_screen import text_of

    while True:
        began_s = time.monotonic()
        look = looks.take(may_fail=True)
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        # A terminal that does not tell its size says 0.
        text = text_of(look, columns or COLUMNS, max((lines or LINES) - 1, 1))
        shown = "".join(f"{line}{_CLEAR_LINE}\n" for line in text.splitlines())
        write_text(f"{_HOME}{shown}{_CLEAR_BELOW}")
        if wait(max(began_s + interval_s - time.monotonic(), 0.0)):
            return


@contextmanager
def _screen() -> Generator[None]:
    """The terminal's other screen without a cursor; what was there before comes back."""
    write_text(_SHOW)
    try:
        yield
    finally:
        write_text(_HIDE)


@contextmanager
def listening() -> Generator[Callable[[float], bool]]:
    """Waits so many seconds for q, True when it came; keys are not shown meanwhile.

    Without a terminal as standard input there are no keys, and it only waits.
    """
    if not is_terminal(sys.stdin):
        yield _only_wait
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number, termios.TCSANOW)
        yield lambda limit_s: _pressed(number, limit_s)
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)


def _only_wait(limit_s: float) -> bool:
    select.select([], [], [], limit_s)
    return False


def _pressed(number: int, limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while select.select([number], [], [], max(end_s - time.monotonic(), 0.0))[0]:
        keys = os.read(number, 64)
        if not keys or keys.lower().startswith(b"q"):  # the terminal is gone, or q
            return True
    return False


class Looks:
    """Takes looks, each within the time of one, and keeps what rates need."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._end_s = 0.0
        self._missing: list[str] = []
        self._failed: OctavoError | None = None
        self._lived: dict[str, set[str]] = {}
        """Brokers, and bookies, that lived in an earlier look."""
        self._disks: DiskWatch | None = None
        self._histories: dict[str, LagHistory] = {}
        """Of the groups of the last look."""

    def take(self, *, may_fail: bool = False) -> Look:
        """One look. Raises what the first part met if no part answers, unless it `may_fail`."""
        # Imported here: loads rich.
        from octavo.cli.top_screen import Look

        self._missing, self._failed = [], None
        self._end_s = time.monotonic() + self._timeout_s
        admin = self._client.admin
        brokers = self._asked("brokers", lambda left: admin.list_brokers(timeout=left))
        health = self._asked("bookies", lambda left: admin.cluster_health(timeout=left))
        disks = self._asked_disks(() if health is None else health.bookies)
        topics = self._asked("topics", lambda left: admin.list_topics(timeout=left))
        groups = self._groups()
        nothing = brokers is None and health is None and topics is None and groups is None
        if nothing and self._failed is not None and not may_fail:
            raise self._failed
        if brokers is not None:
            self._note_gone("broker", {one.broker_id for one in brokers if one.address})
        if health is not None:
            self._note_gone("bookie", {one.bookie_id for one in health.bookies})
        now = datetime.datetime.now(datetime.UTC)
        return Look(
            at=now.isoformat(sep=" ", timespec="seconds"),
            brokers=None if brokers is None else tuple(brokers),
            bookies=None if health is None else health.bookies,
            readings=groups,
            topics=None if topics is None else len(topics),
            missing=tuple(self._missing),
            disks=disks,
        )

    def _note_gone(self, kind: str, living: set[str]) -> None:
        lived = self._lived.setdefault(kind, set())
        lived |= living
        for name in sorted(lived - living):
            self._missing.append(f"{name} lived in an earlier look and does not any more")

    def _asked_disks(self, bookies: Sequence[BookieDescription]) -> Mapping[str, Disk]:
        """Of the bookies that tell of theirs; a line names those that do not."""
        # Imported here: loads gRPC.
        from octavo.cli.top_disks import DiskWatch

        found: dict[str, Disk] = {}
        if not bookies:
            return found
        left_s = self._end_s - time.monotonic()
        if left_s < LEFT_S_MIN:
            self._missing.append("disks: no time was left")
            return found
        self._disks = self._disks or DiskWatch()
        found = self._disks.look(bookies, left_s)
        silent = [one.bookie_id for one in bookies if one.bookie_id not in found]
        if silent:
            named = ", ".join(silent[:NAMED_MAX])
            more = f" and {len(silent) - NAMED_MAX} more" if len(silent) > NAMED_MAX else ""
            self._missing.append(f"disks: no answer at the control port of {named}{more}")
        return found

    def _asked(self, what: str, ask: Callable[[float], _T]) -> _T | None:
        """What a part answers; None, with a line that says why, if it does not."""
        left_s = self._end_s - time.monotonic()
        if left_s < LEFT_S_MIN:
            self._missing.append(f"{what}: no time was left")
            return None
        try:
            return ask(left_s)
        except GroupIdNotFound:
            return None  # deleted since the list was made
        except OctavoError as error:
            self._failed = self._failed or error
            self._missing.append(f"{what}: {error}")
            return None

    def _groups(self) -> tuple[Reading, ...] | None:
        admin = self._client.admin
        listed = self._asked("groups", lambda left: admin.list_groups(timeout=left))
        if listed is None:
            return None
        names = [one.group_id for one in listed]
        if len(names) > GROUPS_MAX:
            self._missing.append(f"{len(names) - GROUPS_MAX} groups more are not looked at")
        found: list[Reading] = []
        for name in names[:GROUPS_MAX]:
            lag = self._asked(f"group {name}", partial(self._lag, name))
            if lag is not None:
                found += self._readings(lag)
        self._histories = {k: v for k, v in self._histories.items() if k in set(names)}
        return tuple(found)

    def _lag(self, name: str, left_s: float) -> GroupLag:
        return self._client.admin.group_lag(name, time_lag=False, timeout=left_s)

    def _readings(self, lag: GroupLag) -> list[Reading]:
        # Imported here: load the SDK, and rich.
        from octavo.cli.top_screen import Reading
        from octavo.client.messaging import LagHistory

        history = self._histories.setdefault(lag.group_id, LagHistory())
        history.add(lag)
        found: list[Reading] = []
        for topic in dict.fromkeys(part.topic for part in lag.partitions):
            parts = [part for part in lag.partitions if part.topic == topic]
            rates = [rate for part in parts if (rate := history.of(part)) is not None]
            known = len(rates) == len(parts)
            found.append(
                Reading(
                    topic=topic,
                    group=lag.group_id,
                    state=lag.state,
                    lag=sum(part.lag for part in parts),
                    in_per_s=sum(rate.inflow for rate in rates) if known else None,
                    out_per_s=sum(rate.drain for rate in rates) if known else None,
                )
            )
        return found
