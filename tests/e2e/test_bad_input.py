"""Bad input: a typed error for whoever sent it, and a server that goes on (P11)."""

from __future__ import annotations

import os
import socket
from typing import Any, cast

import grpc
import pytest

from octavo import Client
from octavo.errors import ConfigError, MessageTooLarge, OctavoError, UnknownTopic
from octavo.proto import batch as codec
from octavo.proto import broker_pb2, broker_pb2_grpc
from octavo.testing import LocalCluster
from tests.fix_zookeeper import free_port

pytestmark = pytest.mark.process

MIB = 1 << 20


def _healthy(client: Client) -> None:
    with client.producer() as producer:
        assert producer.send("good", b"still here").offset >= 0


def test_unknown_topic(cluster: LocalCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        with client.producer(max_block_ms=1_000) as producer, pytest.raises(UnknownTopic) as caught:
            producer.send("no-such-topic", b"x")
        assert "no-such-topic" in caught.value.cause
        assert not caught.value.retriable
        assert caught.value.hint


def test_one_mebibyte_is_accepted_and_one_byte_more_is_not(cluster: LocalCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic("good", partitions=1)
        with client.producer() as producer:
            largest = os.urandom(MIB)
            meta = producer.send("good", largest)
            with pytest.raises(MessageTooLarge) as caught:
                producer.send("good", largest + b"x")
            assert str(MIB + 1) in str(caught.value)
            assert str(MIB) in str(caught.value)
        with client.reader("good", start=meta.offset) as reader:
            assert next(iter(reader.read_to_end())).value == largest
        _healthy(client)


def test_a_corrupt_batch_over_raw_grpc(cluster: LocalCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic("raw", partitions=1)
        client.admin.create_topic("good2", partitions=1)
        batch = bytearray(codec.encode([1], [b"k"], [b"v"]))
        batch[-9] ^= 0xFF
        with grpc.insecure_channel(cluster.bootstrap_servers) as channel:
            stub = broker_pb2_grpc.BrokerStub(channel)
            owner = stub.Lookup(broker_pb2.LookupRequest(topic="raw", partition=0), timeout=20)
            assert owner.owner_address == cluster.bootstrap_servers
            wire = broker_pb2.ProduceBatch(
                correlation=7, topic="raw", partition=0, acks=-1, batch=bytes(batch)
            )
            replies = stub.Produce(iter([broker_pb2.ProduceRequest(batches=[wire])]), timeout=20)
            ack = next(iter(next(iter(replies)).acks))
        assert (ack.correlation, ack.error.code) == (7, "CORRUPT_BATCH")
        with client.reader("raw", start="earliest") as reader:
            assert list(reader.read_to_end()) == []


def _throw_at(host: str, port: int, garbage: bytes) -> None:
    """Send bytes and wait until the server has had enough of them."""
    with socket.create_connection((host, port), timeout=10) as raw:
        try:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                continue
        except TimeoutError:
            pytest.fail("the server keeps the connection")
        except OSError:
            return  # the server closed at the first wrong byte, in the middle of ours


@pytest.mark.parametrize("role", ["broker-1", "bookie-1"])
def test_garbage_bytes_on_the_port(cluster: LocalCluster, role: str) -> None:
    host, _, port = cluster.processes[role].address.rpartition(":")
    for garbage in (b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 16, os.urandom(100_000)):
        _throw_at(host, int(port), garbage)
    with Client(cluster.bootstrap_servers) as client, client.producer() as producer:
        name = f"after-garbage-{role}"
        client.admin.create_topic(name, partitions=1)
        assert producer.send(name, b"unharmed").offset == 0
    assert cluster.process(role).state == "ready"


def test_a_wrong_config_key_names_the_right_one(cluster: LocalCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        with pytest.raises(ConfigError) as caught:
            client.producer(**cast("Any", {"linger_msec": 5}))
        assert "linger_ms" in str(caught.value)
        with pytest.raises(OctavoError) as topic_error:
            client.admin.create_topic("cfg", partitions=1, config={"retention.mss": "1"})
        assert topic_error.value.code == "INVALID_CONFIG"
        assert "retention.ms" in str(topic_error.value)


def test_a_server_that_is_down_is_said_so() -> None:
    port = free_port()
    client = Client(f"127.0.0.1:{port}")
    with client, pytest.raises(OctavoError) as caught:
        client.connect(timeout=2)
    assert caught.value.code in {"BROKER_UNAVAILABLE", "REQUEST_TIMED_OUT"}
    assert str(port) in str(caught.value)
