"""What `octavo group` makes of answers: rows of a person's table and of a program's list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.cli.group_lag import partition_rows
from octavo.cli.groups import topics_named
from octavo.cli.output import Format
from octavo.client.messaging.group_admin.lag import LagHistory
from octavo.client.messaging.group_admin.values import GroupLag, PartitionLag
from octavo.runtime.errors import ConfigError

PART = PartitionLag(
    topic="t",
    topic_id="a",
    partition=3,
    committed=40,
    position=40,
    log_start=10,
    end=100,
    lag=60,
    time_lag_s=1.5,
    uncommitted=False,
    ahead=False,
    member_id="f0e1d2c3-b4a5",
    client_id="billing-1",
)


def sample(at_s: float, part: PartitionLag) -> GroupLag:
    return GroupLag("g", "STABLE", 1, at_s, (part,))


def test_a_person_sees_who_reads_and_what_is_odd() -> None:
    (row,) = partition_rows(sample(0, PART), None, Format.TABLE)
    assert row == {
        "topic": "t",
        "partition": 3,
        "committed": 40,
        "end": 100,
        "lag": 60,
        "time_lag_s": 1.5,
        "note": None,
        "member": "f0e1d2c3...",
    }
    ahead = replace(PART, ahead=True, lag=0, member_id="f0e1")
    (row,) = partition_rows(sample(0, ahead), None, Format.TABLE)
    assert (row["note"], row["member"]) == ("ahead", "f0e1")


@pytest.mark.parametrize("form", [Format.JSON, Format.CSV, Format.YAML])
def test_a_program_gets_every_fact_apart(form: Format) -> None:
    """Unknown, none and zero stay three things (G6)."""
    unread = replace(PART, committed=None, uncommitted=True, position=10, time_lag_s=None)
    (row,) = partition_rows(sample(0, unread), None, form)
    assert (row["committed"], row["uncommitted"], row["ahead"]) == (None, True, False)
    assert (row["time_lag_s"], row["start"], row["lag"]) == (None, 10, 60)
    assert (row["member"], row["client"]) == ("f0e1d2c3-b4a5", "billing-1")


def test_rates_come_with_the_second_look() -> None:
    history = LagHistory()
    history.add(sample(0, PART))
    (row,) = partition_rows(sample(0, PART), history, Format.TABLE)
    assert (row["drain_per_s"], row["eta_s"]) == (None, None)
    later = replace(PART, position=70, committed=70, end=110, lag=40)
    history.add(sample(3, later))
    (row,) = partition_rows(sample(3, later), history, Format.TABLE)
    assert (row["drain_per_s"], row["inflow_per_s"], row["growth_per_s"]) == (10.0, 3.3, -6.7)
    assert row["eta_s"] == 6.0


def test_topics_are_named_whole_or_by_partition() -> None:
    assert topics_named(["t", "u:3,0"]) == ["t", ("u", 3), ("u", 0)]
    for word in ("t:", "t:x", "t:-1", "t:1,", "t:²", "t:99999999999"):
        with pytest.raises(ConfigError, match="TOPIC:P,P"):
            topics_named([word])
