"""Producers whose records expire while brokers and bookies stand still: does each of them go on?

Each round freezes (SIGSTOP) or kills two of three bookies, and the broker that owns most partitions
or another one, for up to 10 s; then everything is back. Three producers with delivery timeouts of
1.5, 3 and 8 s send numbered records all the time and are told what became of each. At the end every
fate is checked against the log: acknowledged records are there once and where it was said, "was not
stored" is true, acknowledged records of a producer lie in the order sent, nothing is stored twice,
and every producer still delivers.
Usage: python -m tools.soak_expiry [--rounds 60] [--seeds 1 2 3]
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence

from octavo import Client
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.sync.producer import Producer
from octavo.runtime.errors import BufferFull, DeliveryFailed, FlushTimeout, OctavoError
from octavo.testing import LocalCluster

TOPIC = "fates"
PARTITIONS = 3
TIMEOUTS_MS = (1_500, 3_000, 8_000)
FAULT_MAX_S = 10.0
QUIET_S = 4.0
"""Between two rounds: long enough for most partitions to find an owner, not always for all."""
GO_ON_S = 60.0
"""How long a producer may take to deliver again once everything is back."""
PAUSE_S = 0.002
_LASTS = threading.Event()
"""Never set: a fault lasts as long as the wait for it."""


class Sender(threading.Thread):
    """One producer: sends numbered records and keeps what it is told of each."""

    def __init__(self, servers: str, number: int, timeout_ms: int) -> None:
        super().__init__(name=f"p{number}", daemon=True)
        self._servers = servers
        self._timeout_ms = timeout_ms
        self._ended = threading.Event()
        self.told: list[tuple[bytes, SendFuture]] = []
        self.broken: str = ""
        self.delivers = False

    def end(self) -> None:
        self._ended.set()

    def run(self) -> None:
        with Client(self._servers) as client:
            producer = client.producer(
                delivery_timeout_ms=self._timeout_ms,
                request_timeout_ms=min(1_000, self._timeout_ms // 2),
                linger_ms=1,
                batch_size=2_048,
                max_block_ms=30_000,
            )
            try:
                self._send(producer)
                self._show_that_it_goes_on(producer)
                producer.flush(GO_ON_S)
            except OctavoError as error:
                self.broken = f"{error!r}: {error}"
            finally:
                self._close(producer)

    def _send(self, producer: Producer) -> None:
        number = 0
        while not self._ended.wait(PAUSE_S):
            value = b"%s-%d" % (self.name.encode(), number)
            try:
                future = producer.send_nowait(TOPIC, value, partition=number % PARTITIONS)
            except BufferFull:
                continue
            self.told.append((value, future))
            number += 1

    def _show_that_it_goes_on(self, producer: Producer) -> None:
        deadline_s = time.monotonic() + GO_ON_S
        for partition in range(PARTITIONS):
            while True:
                value = b"%s-last-%d-%d" % (self.name.encode(), partition, len(self.told))
                future = producer.send_nowait(TOPIC, value, partition=partition)
                self.told.append((value, future))
                if future.exception() is None:
                    break
                if time.monotonic() > deadline_s:
                    self.broken = f"partition {partition}: {future.exception()}"
                    return
        self.delivers = True

    def _close(self, producer: Producer) -> None:
        try:
            producer.close(GO_ON_S)
        except FlushTimeout as error:
            self.broken = self.broken or str(error)
        except DeliveryFailed:
            return  # records failed whose futures are looked at when all is over


def disturb(cluster: LocalCluster, rng: random.Random) -> str:
    """One round: two bookies and a broker freeze or die, and come back within FAULT_MAX_S."""
    victims = [*rng.sample(["bookie-1", "bookie-2", "bookie-3"], 2)]
    if rng.random() < 0.8:
        victims.append(rng.choice(["broker-1", "broker-2"]))
    frozen: list[str] = []
    killed: list[str] = []
    for name in victims:
        if rng.random() < 0.5:
            cluster.freeze(name)
            frozen.append(name)
        else:
            cluster.kill(name)
            killed.append(name)
        _LASTS.wait(rng.uniform(0, 0.7))
    _LASTS.wait(rng.uniform(1.0, FAULT_MAX_S - 3.0))
    for name in rng.sample(victims, len(victims)):
        if name in frozen:
            cluster.thaw(name)
        else:
            cluster.restart(name)
    return f"frozen {frozen}, killed {killed}"


def judge(cluster: LocalCluster, senders: Sequence[Sender]) -> tuple[list[str], str]:
    """What is wrong, and one line of counts."""
    with (
        Client(cluster.bootstrap_servers) as client,
        client.reader(TOPIC, start="earliest") as reader,
    ):
        read = [(r.partition, r.offset, bytes(r.value or b"")) for r in reader.read_to_end()]
    places: dict[bytes, list[tuple[int, int]]] = {}
    for partition, offset, value in read:
        places.setdefault(value, []).append((partition, offset))
    wrong = [f"{value!r} is stored {len(at)} times" for value, at in places.items() if len(at) > 1]
    fates: Counter[str] = Counter()
    for sender in senders:
        if sender.broken or not sender.delivers:
            wrong.append(f"{sender.name} did not go on: {sender.broken}")
        last: dict[int, int] = {}
        for value, future in sender.told:
            at = places.get(value, [])
            fate, complaint = _fate(future, at)
            fates[fate] += 1
            if complaint:
                wrong.append(f"{value!r} {complaint}")
            for partition, offset in at if fate == "acknowledged" else ():
                if offset < last.get(partition, -1):
                    wrong.append(f"{value!r} is stored before a record sent earlier")
                last[partition] = offset
    return wrong, ", ".join(f"{count} {fate}" for fate, count in fates.items())


def _fate(future: SendFuture, at: list[tuple[int, int]]) -> tuple[str, str]:
    """What a sender was told of one record, and what is wrong with that; `at`: where it is."""
    if not future.done():
        return "open", "has no outcome"
    error = future.exception()
    if error is None:
        meta = future.result(0)
        if not at:
            return "acknowledged", "is acknowledged and lost"
        if meta.offset >= 0 and (meta.partition, meta.offset) not in at:
            return "acknowledged", f"is at {at}, not where it was acknowledged"
        return "acknowledged", ""
    if "was not stored" in str(error) or "never sent" in str(error):
        return "not stored", f"was called not stored, and is at {at}" if at else ""
    return "of unknown fate", ""


def say(line: str) -> None:
    """One line of the report, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(seed: int, rounds: int, folder: pathlib.Path) -> list[str]:
    """One seed; returns what is wrong."""
    rng = random.Random(seed)
    with LocalCluster(bookies=3, brokers=2, data=folder) as cluster:
        with Client(cluster.bootstrap_servers) as client:
            client.admin.create_topic(TOPIC, partitions=PARTITIONS)
        senders = [
            Sender(cluster.bootstrap_servers, number, timeout_ms)
            for number, timeout_ms in enumerate(TIMEOUTS_MS)
        ]
        for sender in senders:
            sender.start()
        _LASTS.wait(2.0)
        for number in range(rounds):
            what = disturb(cluster, rng)
            say(f"seed {seed}, round {number + 1} of {rounds}: {what}")
            _LASTS.wait(QUIET_S)
        for sender in senders:
            sender.end()
        for sender in senders:
            sender.join(4 * GO_ON_S)
        wrong, counts = judge(cluster, senders)
    say(f"seed {seed}: {counts}; {len(wrong)} wrong")
    for line in wrong[:20]:
        say(f"  {line}")
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak; exit code 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args(argv)
    wrong: list[str] = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory(prefix="octavo-fates-") as folder:
            wrong += run(seed, given.rounds, pathlib.Path(folder))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
