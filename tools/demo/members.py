"""The group part of the demo: members as processes that follow the stream, one of them killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from octavo import Client
from octavo.runtime.errors import RequestTimedOut
from tools.groups_soak.checker import committed_again, coverage
from tools.groups_soak.fleet import Fleet
from tools.groups_soak.ownership import intervals
from tools.groups_soak.story import Limits

GROUP = "demo"
SESSION_TIMEOUT_MS = 6_000
"""Of this cluster's groups: how long the partitions of a killed member wait."""
MEMBER_OPTIONS = ("--poll-records", "5000")
QUIET_LIMIT_S = 60.0
PAUSE_S = 0.2


class GroupFacts(NamedTuple):
    """What the group did with the stream."""

    group_processed: int
    """Records that some member processed."""
    group_repeated: int
    """Processed again, because whoever had them was killed or lost them before it committed."""
    group_lost: int
    group_repeated_committed: int
    """Must not be: committed, and processed again by whoever got the partition."""

    @property
    def ok(self) -> bool:
        """Each record processed, and again only what was not committed."""
        return not self.group_lost and not self.group_repeated_committed


def judged(client: Client, members: Fleet, ends: Mapping[int, int]) -> GroupFacts:
    """Wait until everything is committed, end the members and judge what they wrote down."""
    _await(client, members, ends)
    events = sorted(members.finish(), key=lambda event: event.at_s)
    lost, repeated = coverage(events, ends)
    limits = Limits(SESSION_TIMEOUT_MS / 1000, SESSION_TIMEOUT_MS / 1000)
    owned = intervals(events, limits, time.monotonic())
    again = list(committed_again(events, owned))
    return GroupFacts(sum(ends.values()) - lost, repeated, lost, len(again))


def _await(client: Client, members: Fleet, ends: Mapping[int, int]) -> None:
    told, since_s = -1, time.monotonic()
    pause = threading.Event()
    while True:
        offsets = client.admin.list_group_offsets(GROUP)
        found = {one.partition: one.offset for one in offsets}
        if found == dict(ends):
            return
        if sum(found.values()) != told:
            told, since_s = sum(found.values()), time.monotonic()
        if time.monotonic() - since_s > QUIET_LIMIT_S:
            raise RequestTimedOut(f"the group stands at {told} of {sum(ends.values())} records")
        members.check()
        pause.wait(PAUSE_S)
