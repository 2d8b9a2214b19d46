"""Links cut through the real Toxiproxy: client to broker, broker to bookie (faults 4.4)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import grpc
import pytest

from octavo import Client
from octavo.chaos.toxiproxy import Link, ToxiproxyServer, wait_until
from octavo.proto import broker_pb2, broker_pb2_grpc
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import RequestTimedOut
from octavo.supervisor.ports import choose_free
from octavo.testing import LocalCluster

pytestmark = [pytest.mark.process, pytest.mark.toxiproxy]

OTHER_LOOPBACK = "127.0.0.2"
"""Bookies advertise this address; Toxiproxy listens there and forwards to 127.0.0.1."""


def read(bootstrap: str, topic: str) -> list[int]:
    with Client(bootstrap) as client, client.reader(topic, start="earliest") as reader:
        return [int(record.value or b"-1") for record in reader.read_to_end()]


@pytest.fixture
def behind_links(toxiproxy: ToxiproxyServer) -> Iterator[tuple[LocalCluster, dict[str, Link]]]:
    """A cluster whose broker reaches each bookie through a link."""
    with LocalCluster(bookie_settings={"advertised_host": OTHER_LOOPBACK}) as cluster:
        links = {
            name: toxiproxy.link(
                name, entry.address, entry.address.replace("127.0.0.1", OTHER_LOOPBACK)
            )
            for name, entry in cluster.processes.items()
            if entry.role == "bookie"
        }
        yield cluster, links


def test_a_cut_bookie_link_stops_nothing(
    toxiproxy: ToxiproxyServer, behind_links: tuple[LocalCluster, dict[str, Link]]
) -> None:
    cluster, links = behind_links
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic("cut", partitions=1)
        with client.producer() as producer:
            producer.send_many("cut", [str(n) for n in range(100)])
            with links["bookie-1"].down():
                producer.send_many("cut", [str(n) for n in range(100, 300)])
            assert wait_until(lambda: toxiproxy.received_bytes(links["bookie-1"]) > 0, 60.0)
            black_hole = links["bookie-2"].add("timeout", stream="upstream", timeout=0)
            producer.send_many("cut", [str(n) for n in range(300, 400)])
            links["bookie-2"].remove(black_hole)
            assert wait_until(lambda: toxiproxy.received_bytes(links["bookie-2"]) > 0, 60.0)
            producer.send_many("cut", [str(n) for n in range(400, 500)])
    assert read(cluster.bootstrap_servers, "cut") == list(range(500))


def test_two_cut_bookie_links_hold_writes_back_until_one_heals(
    behind_links: tuple[LocalCluster, dict[str, Link]],
) -> None:
    """Qa copies or no acknowledgement; afterwards each record is there once."""
    cluster, links = behind_links
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic("held", partitions=1)
        with client.producer() as producer:
            producer.send("held", "0")
            links["bookie-1"].cut()
            links["bookie-2"].cut()
            waiting = [producer.send_nowait("held", str(n)) for n in range(1, 50)]
            with pytest.raises(RequestTimedOut):
                waiting[0].result(timeout=1.0)
            links["bookie-1"].heal()
            offsets = [future.result(timeout=60).offset for future in waiting]
    assert offsets == sorted(offsets)
    assert read(cluster.bootstrap_servers, "held") == list(range(50))


class FrontLink(NamedTuple):
    """A cluster whose clients reach the broker through a link only."""

    link: Link
    direct: str
    """The broker's own address, beside the link."""


@pytest.fixture
def front(toxiproxy: ToxiproxyServer) -> Iterator[FrontLink]:
    port = choose_free("127.0.0.1", set(), SystemEntropy())
    link = toxiproxy.link("broker-1", f"127.0.0.1:{port}")
    with LocalCluster(port=port, broker_settings={"advertised_address": link.listen}):
        yield FrontLink(link, f"127.0.0.1:{port}")


def test_a_cut_client_link_neither_loses_nor_doubles(
    toxiproxy: ToxiproxyServer, front: FrontLink
) -> None:
    """P4: replies that were swallowed are lost with the link, and retries are recognised."""
    with Client(front.link.listen) as client, grpc.insecure_channel(front.direct) as channel:
        client.admin.create_topic("once", partitions=1)
        ask = broker_pb2_grpc.BrokerStub(channel).DescribeLog
        where = broker_pb2.DescribeLogRequest(topic="once", partition=0)

        def is_stored(count: int) -> bool:
            return ask(where).high_watermark == count

        # Lingering makes one or two batches of a round: without replies only five may be in flight.
        with client.producer(linger_ms=200) as producer:
            producer.send("once", "0-0")
            for round_number in range(1, 6):
                swallow = front.link.add("timeout", stream="downstream", timeout=0)
                sent = [producer.send_nowait("once", f"{round_number}-{n}") for n in range(100)]
                assert wait_until(partial(is_stored, 1 + 100 * round_number), 30.0)
                assert not any(future.done() for future in sent), "a reply got through"
                front.link.cut()
                front.link.remove(swallow)
                front.link.heal()
                for future in sent:
                    future.result(timeout=60)
        assert is_stored(501), "a record was stored twice"
    assert toxiproxy.received_bytes(front.link) > 0
    with Client(front.link.listen) as client, client.reader("once") as reader:
        values = [record.value for record in reader.read_to_end()]
    wanted = [f"{r}-{n}".encode() for r in range(1, 6) for n in range(100)]
    assert values == [b"0-0", *wanted]
