"""Topics deleted and created again under live producers and readers: is a name ever an identity?

Each round deletes every topic and creates it again with another number of partitions and other
settings, while one keyed and one keyless producer, a reader by name and a consumer at a chosen
position live on. Then the senders rest and the new life is judged: every record acknowledged for it
is there once and where it was said, nothing that was refused with the old life is, keys lie in
murmur2(key) % partitions, the reader by name delivered all of it, the chosen position raised, and
no server logged a traceback. Usage: python -m tools.soak_recreate [--rounds 40] [--seed 1]
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

from octavo import Client, Consumer, TopicPartition
from octavo.client.messaging.partitioner import partition_of
from octavo.client.messaging.producing.futures import SendFuture
from octavo.runtime.errors import BufferFull, InconsistentTopicId, OctavoError, UnknownTopic
from octavo.testing import LocalCluster

NAMES = ("lives.one", "lives.two")
PARTITIONS = (1, 2, 3, 5)
PAUSE_S = 0.004
REST_S = 60.0
"""How long producers and readers may take to come to rest."""
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


class Sender(threading.Thread):
    """One producer over all names: numbered records, tagged with the round they were sent in."""

    def __init__(self, servers: str, name: str, *, keyed: bool) -> None:
        super().__init__(name=name, daemon=True)
        self._servers = servers
        self._keyed = keyed
        self.round = 0
        self.works = threading.Event()
        self.rests = threading.Event()
        self.ends = threading.Event()
        self.broken = ""
        self.told: list[tuple[str, int, bytes, bytes | None, SendFuture | OctavoError]] = []

    def run(self) -> None:
        with Client(self._servers) as client, client.producer(linger_ms=1) as producer:
            number = 0
            while not self.ends.is_set():
                if not self.works.wait(PAUSE_S):
                    try:
                        producer.flush(REST_S)
                    except OctavoError as error:
                        self.broken = self.broken or f"flush: {error}"
                    self.rests.set()
                    continue
                topic = NAMES[number % len(NAMES)]
                at, key = self.round, b"k%d" % (number % 97) if self._keyed else None
                value = b"%s-%d-%d" % (self.name.encode(), at, number)
                number += 1
                try:
                    sent: SendFuture | OctavoError = producer.send_nowait(topic, value, key=key)
                except (UnknownTopic, InconsistentTopicId, BufferFull) as error:
                    sent = error
                self.told.append((topic, at, value, key, sent))
                _LASTS.wait(PAUSE_S)


class Follower(threading.Thread):
    """A reader by name that is open all the time."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(name=f"reader of {topic}", daemon=True)
        self._servers = servers
        self._topic = topic
        self.ends = threading.Event()
        self.seen: set[bytes] = set()
        self.said: Counter[str] = Counter()

    def run(self) -> None:
        with Client(self._servers) as client:
            reader = client.reader(self._topic, start="earliest")
            while not self.ends.is_set():
                try:
                    for record in reader.poll(timeout=0.2):
                        self.seen.add(bytes(record.value or b""))
                except OctavoError as error:
                    self.said[error.code] += 1
            reader.close()


def recreate(client: Client, rng: random.Random) -> dict[str, int]:
    """Give every name its next life; returns the partition counts."""
    counts: dict[str, int] = {}
    for name in NAMES:
        client.admin.delete_topic(name, timeout=30)
        config = {"max.message.bytes": str(rng.choice((65_536, 1 << 20)))}
        counts[name] = rng.choice(PARTITIONS)
        client.admin.create_topic(name, partitions=counts[name], config=config, timeout=30)
    return counts


def logs_of(client: Client) -> dict[str, dict[bytes, list[tuple[int, int, bytes | None]]]]:
    """What each topic holds: value -> places and keys."""
    found: dict[str, dict[bytes, list[tuple[int, int, bytes | None]]]] = {}
    for name in NAMES:
        found[name] = {}
        with client.reader(name, start="earliest") as reader:
            for record in reader.read_to_end():
                places = found[name].setdefault(bytes(record.value or b""), [])
                places.append((record.partition, record.offset, record.key))
    return found


class Judge:
    """Compares what was told with what is there, and counts."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.fates: Counter[str] = Counter()

    def life(
        self,
        number: int,
        senders: Sequence[Sender],
        logs: dict[str, dict[bytes, list[tuple[int, int, bytes | None]]]],
        counts: dict[str, int],
    ) -> None:
        """The life that began with round `number`."""
        for name, values in logs.items():
            for value, places in values.items():
                if len(places) > 1:
                    self.wrong.append(f"round {number}: {value!r} is {len(places)} times in {name}")
                for partition, _, key in places:
                    if key is not None and partition != partition_of(key, counts[name]):
                        self.wrong.append(f"round {number}: {key!r} lies in {name}-{partition}")
        for sender in senders:
            for topic, at, value, _, sent in sender.told:
                self._record(number, topic, at, value, sent, logs[topic].get(value, []))
            sender.told.clear()

    def _record(
        self,
        number: int,
        topic: str,
        at: int,
        value: bytes,
        sent: SendFuture | OctavoError,
        places: list[tuple[int, int, bytes | None]],
    ) -> None:
        error = sent if isinstance(sent, OctavoError) else sent.exception(timeout=REST_S)
        self.fates[error.code if error is not None else "ACKNOWLEDGED"] += 1
        here = [(partition, offset) for partition, offset, _ in places]
        if error is None and not isinstance(sent, OctavoError):
            meta = sent.result(timeout=REST_S)
            if here and (meta.partition, meta.offset) not in here:
                self.wrong.append(f"round {number}: {value!r} is at {here}, not where it was said")
            if not here and at == number:
                self.wrong.append(f"round {number}: {value!r} of {topic} is acknowledged and lost")
        elif here and isinstance(error, InconsistentTopicId | UnknownTopic):
            self.wrong.append(f"round {number}: {value!r} was refused ({error.code}) and is stored")


def chosen_position_raises(consumer: Consumer) -> bool:
    """Whether a consumer that chose an offset of the old life hears that it is over."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        try:
            consumer.poll(timeout=0.5)
        except (InconsistentTopicId, UnknownTopic):
            return True
    return False


def one_round(
    number: int,
    client: Client,
    rng: random.Random,
    senders: Sequence[Sender],
    followers: dict[str, Follower],
    judge: Judge,
) -> None:
    """The next life of every name, and its judgement."""
    chosen = client.consumer(auto_offset_reset="earliest")
    chosen.assign([TopicPartition(NAMES[0], 0)])
    chosen.seek(TopicPartition(NAMES[0], 0), 0)
    chosen.poll(timeout=1.0)
    counts = recreate(client, rng)
    for sender in senders:
        sender.round = number
    if not chosen_position_raises(chosen):
        judge.wrong.append(f"round {number}: a chosen position of the old life went on in silence")
    chosen.close()
    _LASTS.wait(rng.uniform(0.3, 1.2))
    for sender in senders:
        sender.rests.clear()
        sender.works.clear()
    for sender in senders:
        if not sender.rests.wait(2 * REST_S):
            judge.wrong.append(f"round {number}: {sender.name} does not come to rest")
    logs = logs_of(client)
    judge.life(number, senders, logs, counts)
    for name, follower in followers.items():
        deadline_s = time.monotonic() + REST_S
        while not logs[name].keys() <= follower.seen and time.monotonic() < deadline_s:
            _LASTS.wait(0.1)
        missing = logs[name].keys() - follower.seen
        if missing:
            judge.wrong.append(f"round {number}: {follower.name} did not see {len(missing)}")
        follower.seen.clear()
    for sender in senders:
        sender.works.set()


def run(rounds: int, seed: int, folder: pathlib.Path) -> list[str]:
    """The soak; returns what is wrong."""
    rng, judge = random.Random(seed), Judge()
    with LocalCluster(bookies=3, brokers=2, data=folder) as cluster:
        servers = cluster.bootstrap_servers
        with Client(servers) as client:
            for name in NAMES:
                client.admin.create_topic(name, partitions=2)
            senders = [Sender(servers, "keyed", keyed=True), Sender(servers, "bare", keyed=False)]
            followers = {name: Follower(servers, name) for name in NAMES}
            for thread in (*senders, *followers.values()):
                thread.start()
            for sender in senders:
                sender.works.set()
            for number in range(1, rounds + 1):
                one_round(number, client, rng, senders, followers, judge)
                say(f"round {number} of {rounds}: {dict(judge.fates)}, wrong {len(judge.wrong)}")
            ending: list[Sender | Follower] = [*senders, *followers.values()]
            for thread in ending:
                thread.ends.set()
                thread.join(REST_S)
                if thread.is_alive():
                    judge.wrong.append(f"{thread.name} does not end")
        judge.wrong += [f"{s.name}: {s.broken}" for s in senders if s.broken]
        for log in sorted((folder / "logs").glob("*.log")):
            if "Traceback" in log.read_text(errors="replace"):
                judge.wrong.append(f"{log.name} holds a traceback")
    told = {name: dict(follower.said) for name, follower in followers.items()}
    say(f"recreate: {dict(judge.fates)}; readers were told {told}; {len(judge.wrong)} wrong")
    for line in judge.wrong[:20]:
        say(f"  {line}")
    return judge.wrong


def say(line: str) -> None:
    """One line of the report, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak; exit code 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="octavo-recreate-") as folder:
        return 1 if run(given.rounds, given.seed, pathlib.Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
