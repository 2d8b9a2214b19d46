"""`octavo group lag`: how far groups are behind, once or again and again, with rates."""

from __future__ import annotations

import datetime
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from octavo.cli.completion import group_names
from octavo.cli.failures import ExitCode
from octavo.cli.output import (
    Format,
    FormatOption,
    Row,
    Value,
    emit_one,
    emit_rows,
    to_csv,
    to_yaml,
    write_text,
)
from octavo.cli.session import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    BootstrapOption,
    TimeoutOption,
    connected,
)
from octavo.cli.stopping import terminable
from octavo.cli.terminal import is_terminal

if TYPE_CHECKING:
    from octavo.client.messaging import Client
    from octavo.client.messaging.group_admin.lag import LagHistory
    from octavo.client.messaging.group_admin.values import GroupLag, PartitionLag
    from octavo.proto.lag import Rates

UncommittedOption = Annotated[
    Literal["earliest", "latest"],
    typer.Option(
        "--uncommitted-from",
        help="Where consumers would begin that committed nothing (their auto_offset_reset).",
    ),
]
INTERVAL_S = 2.0
SHOWN_ID_CHARS = 8
CLEAR_SCREEN = "\x1b[H\x1b[2J"


def lag(
    group: Annotated[
        str | None,
        typer.Argument(help="Id of the group; without it, all.", autocompletion=group_names),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again and again, with rates, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.2, max=3600)
    ] = INTERVAL_S,
    count: Annotated[
        int | None, typer.Option("-n", help="With --watch: stop after so many looks.", min=1)
    ] = None,
    uncommitted_from: UncommittedOption = "earliest",
    output: FormatOption = Format.TABLE,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> int:
    """Show how far a group is behind: records, seconds, and with --watch its rates.

    With --watch, -o json and -o yaml give a document for each look, JSON one a line. Rates are
    records a second over the last minute; eta_s says when the group will have caught up.
    """
    with terminable(), connected(bootstrap, timeout) as client:
        looks = Looks(client, group, uncommitted_from, timeout)
        if not watch:
            looks.show(looks.take(), output)
            return ExitCode.OK
        # Imported here: loads the SDK.
        from octavo.client.messaging import LagHistory

        try:
            for number in _ticks(interval, count):
                sample = looks.take()
                for one in sample:
                    looks.histories.setdefault(one.group_id, LagHistory()).add(one)
                looks.show_again(sample, output, first=number == 0)
        except KeyboardInterrupt:
            return ExitCode.OK
    return ExitCode.OK


def _ticks(interval_s: float, count: int | None) -> Iterator[int]:
    """Numbers from 0 on, the first at once; a look that takes long delays the next."""
    number = 0
    waiting = threading.Event()
    while count is None or number < count:
        began_s = time.monotonic()
        yield number
        number += 1
        if count is None or number < count:
            waiting.wait(max(began_s + interval_s - time.monotonic(), 0))


class Looks:
    """Samples of one group or of all, and how they are printed."""

    def __init__(
        self,
        client: Client,
        group: str | None,
        uncommitted_from: Literal["earliest", "latest"],
        timeout_s: float,
    ) -> None:
        self._client = client
        self._group = group
        self._from: Literal["earliest", "latest"] = uncommitted_from
        self._timeout_s = timeout_s
        self.histories: dict[str, LagHistory] = {}
        """Of each group, while watching."""

    def take(self) -> list[GroupLag]:
        """One look; of all groups, one that is deleted meanwhile is left out."""
        # Imported here: loads the SDK.
        from octavo.errors import GroupIdNotFound

        admin = self._client.admin
        if self._group is not None:
            return [self._of(self._group)]
        found: list[GroupLag] = []
        for listed in admin.list_groups(timeout=self._timeout_s):
            try:
                found.append(self._of(listed.group_id))
            except GroupIdNotFound:
                continue
        return found

    def _of(self, group: str) -> GroupLag:
        return self._client.admin.group_lag(
            group, uncommitted_from=self._from, timeout=self._timeout_s
        )

    def show(self, sample: list[GroupLag], output: Format) -> None:
        """Print one look by itself."""
        rows, head = self._rows(sample, output), self._head(sample)
        if self._group is None:
            emit_rows(rows, output, title="groups")
        elif output is Format.CSV:
            emit_rows(rows, output)
        elif output is Format.TABLE:
            emit_one(head, output)
            emit_rows(
                rows, output, title="partitions: the group committed nothing and reads nothing"
            )
        else:
            emit_one({**head, "partitions": rows}, output)

    def show_again(self, sample: list[GroupLag], output: Format, *, first: bool) -> None:
        """Print one look of many: on a terminal in place of the one before."""
        rows, head = self._rows(sample, output), self._head(sample)
        at: Row = {"at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        whole: Mapping[str, Value] = (
            {**at, "groups": rows} if self._group is None else {**at, **head, "partitions": rows}
        )
        match output:
            case Format.JSON:
                write_text(json.dumps(whole) + "\n")
            case Format.YAML:
                write_text(("" if first else "---\n") + to_yaml(whole))
            case Format.CSV:
                text = to_csv([{**at, **row} for row in rows])
                write_text(text if first else text.partition("\n")[2])
            case Format.TABLE:
                if is_terminal(sys.stdout):
                    write_text(CLEAR_SCREEN)
                elif not first:
                    write_text("\n")
                self.show(sample, output)

    def _head(self, sample: list[GroupLag]) -> Row:
        return self._group_row(sample[0]) if sample else {}

    def _rows(self, sample: list[GroupLag], output: Format) -> list[Row]:
        if self._group is None:
            return [self._group_row(one) for one in sample]
        return partition_rows(sample[0], self.histories.get(self._group), output)

    def _group_row(self, one: GroupLag) -> Row:
        history = self.histories.get(one.group_id)
        row: Row = {
            "group": one.group_id,
            "state": one.state,
            "members": one.members,
            "lag": one.lag,
            "time_lag_s": one.time_lag_s,
        }
        return row if history is None else {**row, **_rates(history.total())}


def partition_rows(lag: GroupLag, history: LagHistory | None, output: Format) -> list[Row]:
    """A row for each partition; with rates when there is a history."""
    in_line = output is Format.TABLE
    rows: list[Row] = []
    for part in lag.partitions:
        row = _in_line(part) if in_line else _in_full(part)
        rates: Row = {} if history is None else _rates(history.of(part))
        rows.append({**row, **rates})
    return rows


def _in_line(part: PartitionLag) -> Row:
    return {
        "topic": part.topic,
        "partition": part.partition,
        "committed": part.committed,
        "end": part.end,
        "lag": part.lag,
        "time_lag_s": part.time_lag_s,
        "note": "ahead" if part.ahead else None,
        "member": None if part.member_id is None else _short(part.member_id),
    }


def _short(member_id: str) -> str:
    """Enough to find it among the members that `octavo group describe` names in full."""
    shown = member_id[:SHOWN_ID_CHARS]
    return shown if shown == member_id else shown + "..."


def _in_full(part: PartitionLag) -> Row:
    return {
        "topic": part.topic,
        "partition": part.partition,
        "committed": part.committed,
        "start": part.log_start,
        "end": part.end,
        "lag": part.lag,
        "time_lag_s": part.time_lag_s,
        "uncommitted": part.uncommitted,
        "ahead": part.ahead,
        "member": part.member_id,
        "client": part.client_id,
    }


def _rates(rates: Rates | None) -> Row:
    if rates is None:
        return dict.fromkeys(("drain_per_s", "inflow_per_s", "growth_per_s", "eta_s"))
    return {
        "drain_per_s": round(rates.drain, 1),
        "inflow_per_s": round(rates.inflow, 1),
        "growth_per_s": round(rates.growth, 1),
        "eta_s": None if rates.eta_s is None else round(rates.eta_s, 1),
    }
