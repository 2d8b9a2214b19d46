"""The series of groups: what the last pass found, no request to anybody (M4)."""

from __future__ import annotations

import asyncio

from octavo.metrics import of_groups as g
from octavo.metrics.readings import Readings
from octavo.serving.group_lag.rows import Look

ROWS_IN_A_TURN = 200
"""Partitions that one look goes through between two turns of the event loop."""


async def add_groups(readings: Readings, look: Look) -> None:
    """Of one look; what is not known has no series."""
    for group in look.groups:
        readings.add(g.SUBSCRIPTION_CONSUMERS, group.members, group.group)
    gone_through = 0
    for row, sums, partitions in look.topics():
        names = (row.group, row.topic)
        readings.add(g.TOPIC_LAG, sums.lag, *names)
        readings.add(g.TOPIC_LAG_SECONDS, sums.seconds, *names)
        readings.add(g.TOPIC_DRAIN, sums.drain, *names)
        readings.add(g.TOPIC_INFLOW, sums.inflow, *names)
        readings.add(g.TOPIC_UNKNOWN, sums.unknown, *names)
        for one in partitions:
            labels = (*names, str(one.partition))
            readings.add(g.SUBSCRIPTION_LAG, one.lag, *labels)
            readings.add(g.SUBSCRIPTION_LAG_SECONDS, one.seconds(look.now_ms), *labels)
            if one.rates is not None:
                readings.add(g.SUBSCRIPTION_DRAIN, one.rates.drain, *labels)
                readings.add(g.SUBSCRIPTION_INFLOW, one.rates.inflow, *labels)
        gone_through += row.size
        if gone_through >= ROWS_IN_A_TURN:
            gone_through = 0
            await asyncio.sleep(0)  # requests have their turn
    readings.add(g.SUBSCRIPTION_LEFT_OUT, look.groups_left_out, "group")
    readings.add(g.SUBSCRIPTION_LEFT_OUT, look.topics_left_out, "topic")
    readings.add(g.SUBSCRIPTION_LEFT_OUT, look.partitions_left_out, "partition")
