"""The sentence of `octavo cluster health` says what is known, and no more."""

from __future__ import annotations

from dataclasses import replace

from octavo.cli.ledgers import judge
from octavo.client.messaging.api.descriptions import (
    BookieDescription,
    BrokerDescription,
    ClusterHealth,
)

FINE = ClusterHealth(
    cluster_id="c",
    brokers=(BrokerDescription("broker-1", "a:1"),),
    bookies=tuple(BookieDescription(f"bookie-{n}", "", "", "", "rw") for n in range(3)),
    metadata_connected=True,
    write_quorum=3,
    ack_quorum=2,
    degraded_ledgers=0,
    short_segments=0,
    segments=7,
    census_complete=True,
)


def test_nothing_is_claimed_about_copies_that_nobody_counted() -> None:
    healthy, sentence = judge(FINE)
    assert healthy
    assert FINE.healthy
    assert sentence == (
        "healthy: 1 broker, 3 writable bookies; new records go to 3 bookies and are acknowledged "
        "by 2"
    )


def test_machines_and_fault_domains_of_the_bookies_are_counted() -> None:
    """3.8: a copy is as far from the next as the bookies are."""
    disks = tuple(
        BookieDescription(f"b{n}", "", f"{host}:3181", "", "rw", domain)
        for n, (host, domain) in enumerate([("h1", "r1"), ("h1", "r1"), ("h2", "r1"), ("h3", "r2")])
    )
    _, sentence = judge(replace(FINE, bookies=disks))
    assert "4 writable bookies on 3 hosts in 2 fault domains;" in sentence
    _, sentence = judge(replace(FINE, bookies=disks[:2], write_quorum=2))
    assert "2 writable bookies on 1 host;" in sentence


def test_read_only_bookies_are_named() -> None:
    bookies = tuple(
        replace(one, state="ro") if one.bookie_id == "bookie-1" else one for one in FINE.bookies
    )
    healthy, sentence = judge(replace(FINE, bookies=bookies))
    assert healthy
    assert "1 read-only bookie: bookie-1" in sentence


def test_short_segments_are_said_with_what_was_looked_at() -> None:
    healthy, sentence = judge(replace(FINE, short_segments=2))
    assert healthy
    assert "of 7 segments 2 cannot have all copies now" in sentence
    _, sentence = judge(replace(FINE, short_segments=2, segments=2000, census_complete=False))
    assert "of the newest 2000 segments 2 cannot" in sentence


def test_copies_that_are_being_made_are_said() -> None:
    healthy, sentence = judge(replace(FINE, marked_ledgers=3))
    assert healthy
    assert sentence.startswith("writes are healthy; copies of 3 ledgers are being made (1 broker")
    _, sentence = judge(replace(FINE, short_segments=2, marked_ledgers=1))
    assert "on bookies that are away; copies of 1 ledger are being made (1 broker" in sentence


def test_of_a_bookie_that_came_back_nothing_is_known_before_somebody_has_looked() -> None:
    healthy, sentence = judge(replace(FINE, returned_bookies=("bookie-2",)))
    assert healthy
    assert sentence.startswith(
        "writes are healthy, but whether bookie-2 has all copies is not known yet: nobody has "
        "looked at every ledger since it came back (1 broker"
    )
    both = replace(FINE, returned_bookies=("bookie-1", "bookie-2"), marked_ledgers=2)
    assert "whether bookie-1, bookie-2 have all copies" in judge(both)[1]
    assert "since they came back; copies of 2 ledgers are being made (1" in judge(both)[1]
    named = judge(replace(FINE, returned_bookies=tuple(f"b{n}" for n in range(9))))[1]
    assert "b4, ... have" in named
    away = judge(replace(FINE, returned_bookies=("bookie-2",), short_segments=1))[1]
    assert "1 cannot have all copies" in away, "what is known to be short comes first"


def test_a_catalog_that_cannot_be_read_is_not_healthy() -> None:
    unknown = replace(FINE, degraded_ledgers=None, short_segments=None, segments=None)
    assert not unknown.healthy
    healthy, sentence = judge(unknown)
    assert not healthy
    assert "copies are not known" in sentence


def test_a_silent_metadata_store_is_named_with_its_address() -> None:
    why = "the metadata store at zk://zk-1:2181 does not answer"
    healthy, sentence = judge(replace(FINE, metadata_connected=False, metadata_error=why))
    assert not healthy
    assert sentence.startswith(f"unhealthy: {why}, nothing new can be opened")
    _, sentence = judge(replace(FINE, metadata_connected=False))  # of an older broker
    assert "the metadata store is away" in sentence
