"""`octavo consume --group`: a member of a group that commits what it has written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from octavo.cli.failures import ExitCode
from octavo.cli.output import count_of, note, write_bytes
from octavo.cli.positions import Start
from octavo.cli.progress import Progress
from octavo.cli.stopping import StopRequest, stop_requests
from octavo.cli.terminal import is_terminal
from octavo.runtime.errors import ConfigError
from octavo.runtime.errors_of_groups import CommitFailed

if TYPE_CHECKING:
    from octavo.cli.records import Renderer
    from octavo.client.messaging import Client, GroupConsumer, Record, TopicPartition

POLL_S = 0.5
POLL_RECORDS = 1000


def reset_policy(start: Start) -> str:
    """Where the group begins in partitions of which it committed nothing; raises ConfigError."""
    match start.kind:
        case "start":
            return "earliest"
        case "end":
            return "latest"
        case "time":
            return f"by_time:{start.value}"
        case _:
            raise ConfigError(
                "with --group, --from is start, end or @TIME: it is for partitions of which the "
                "group committed nothing",
                hint="`octavo group reset` moves a group",
            )


def consume_in_group(
    client: Client,
    topics: list[str],
    group: str,
    *,
    policy: str,
    render: Renderer,
    count: int | None,
    follow: bool,
    timeout_s: float,
) -> int:
    """Write records and commit them once they are written.

    Without `follow` it ends where its partitions ended when it got them. Ctrl-C ends it after the
    records at hand are written and committed.
    """
    for topic in topics:
        client.admin.describe_topic(topic, timeout=timeout_s)  # a misspelt one is an error
    with (
        stop_requests() as stop,
        client.consumer(
            topics,
            group=group,
            on_assign=_say("assigned"),
            on_revoke=_say("given up"),
            on_lost=_say("lost"),
            enable_auto_commit=False,
            auto_offset_reset=policy,
            request_timeout_ms=max(round(timeout_s * 1000), 1_000),
        ) as consumer,
    ):
        member = _Member(consumer, render, count, timeout_s)
        ended = member.read(stop, follow=follow)
    if not ended and not follow:
        note(f"interrupted after {count_of(member.written, 'record')}, all of them committed")
        return ExitCode.INTERRUPTED
    return ExitCode.OK


class _Member:
    """What one command read, wrote and committed."""

    def __init__(
        self, consumer: GroupConsumer, render: Renderer, count: int | None, timeout_s: float
    ) -> None:
        self._consumer = consumer
        self._render = render
        self._count = count
        self._timeout_s = timeout_s
        self._ends: dict[TopicPartition, int] = {}
        self.written = 0

    def read(self, stop: StopRequest, *, follow: bool) -> bool:
        """Until there is nothing more to do; whether that is so, and nobody stopped it."""
        give_up_s = time.monotonic() + self._timeout_s
        to_terminal = is_terminal(sys.stdout)
        with Progress(self._progress, wanted=not to_terminal) as progress:
            while not stop.came:
                records = self._consumer.poll(max_records=self._wanted(), timeout=POLL_S)
                if records:
                    self._write(records)
                    progress.show()
                if self.written == self._count:
                    return True
                if follow:
                    continue
                assigned = self._consumer.assignment()
                if not assigned and time.monotonic() >= give_up_s:
                    note("nothing was assigned: other members read all partitions")
                    return True
                if assigned and not records and self._is_at_ends(assigned):
                    return True
        return False

    def _wanted(self) -> int:
        return (
            POLL_RECORDS if self._count is None else min(POLL_RECORDS, self._count - self.written)
        )

    def _progress(self, passed_s: float) -> str:
        return f"{self.written:,} records written and committed, {self.written / passed_s:,.0f}/s"

    def _write(self, records: list[Record]) -> None:
        """A record is committed only when it is out: who is killed in between writes it again."""
        offsets: dict[TopicPartition, int] = {}
        for record in records:
            write_bytes(self._render(record), flush=False)
            offsets[record.topic_partition] = record.offset + 1
        write_bytes(b"", flush=True)
        self.written += len(records)
        try:
            self._consumer.commit(offsets)
        except CommitFailed as error:
            note(f"not committed, another member will read them again: {error.cause}")

    def _is_at_ends(self, assigned: list[TopicPartition]) -> bool:
        new = [where for where in assigned if where not in self._ends]
        if new:
            self._ends.update(self._consumer.end_offsets(*new))
        return all(self._consumer.position(where) >= self._ends[where] for where in assigned)


def _say(what: str) -> Callable[[list[TopicPartition]], None]:
    def said(partitions: list[TopicPartition]) -> None:
        if partitions:
            note(f"{what}: {ranges_of(partitions)}")

    return said


def ranges_of(partitions: Iterable[TopicPartition]) -> str:
    """`orders 0-2,5; bills 1`."""
    parts: list[str] = []
    for topic, given in groupby(sorted(partitions), key=lambda where: where.topic):
        runs: list[list[int]] = []
        for where in given:
            if runs and runs[-1][-1] == where.partition - 1:
                runs[-1].append(where.partition)
            else:
                runs.append([where.partition])
        words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
        parts.append(f"{topic} {','.join(words)}")
    return "; ".join(parts)
