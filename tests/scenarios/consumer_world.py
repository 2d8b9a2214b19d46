"""One consumer of one topic over two fake brokers: the commands of scenarios about positions.

The client is the real asynchronous one, its brokers speak the real wire. `judge` holds, after every
step: what was handed out of a partition goes on where it stopped, unless the scenario moved the
position itself; no record is skipped, none comes twice (F8).
"""

from __future__ import annotations

from octavo import AsyncClient, Record, TopicPartition
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.proto import batch as batch_format
from tests.fake_broker import FakeCluster
from tests.scenarios.judged import Deed, JudgedWorld
from tests.scenarios.language import Step

TOPIC = "orders"
POLL_S = 10.0
"""For what must come, on a busy machine too."""
QUIET_S = 0.2
"""For what must not come."""


class ConsumerWorld(JudgedWorld):
    """The brokers, the client, and where each partition must go on."""

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeCluster(brokers=2)
        self._client: AsyncClient | None = None
        self._consumer: AsyncConsumer | None = None
        self._next: dict[int, int] = {}
        """Offset that must be handed out next, where that is known."""
        self._skipped: list[str] = []

    def deeds(self) -> dict[str, Deed]:
        """See each of them."""
        return {
            "topic": self._topic,
            "append": self._append,
            "trim": self._trim,
            "move": self._move,
            "consume": self._consume,
            "poll": self._poll,
            "seek": self._seek,
            "pause": self._pause,
            "resume": self._resume,
            "positions": self._positions,
            "lag": self._lag,
            "leave": self._leave,
            "stop": self._stop,
            "start": self._start,
            "corrupt": self._corrupt,
        }

    @property
    def consumer(self) -> AsyncConsumer:
        """The one that `consume` opened."""
        assert self._consumer is not None
        return self._consumer

    # --- brokers ---

    async def _topic(self, step: Step) -> list[str]:
        """`topic [partitions=1]`: partition P belongs to broker P modulo 2."""
        await self._fake.start()
        self._fake.create(TOPIC, step.number("partitions", 1))
        return []

    async def _append(self, step: Step) -> list[str]:
        """`append PARTITION VALUE.. [time=MS]`: one batch, as a producer left it."""
        number, *words = step.args
        log = self._fake.log(TOPIC, int(number))
        first, time_ms = log.end, step.number("time", 1)
        values: list[bytes | None] = [word.encode() for word in words]
        log.append(batch_format.encode([time_ms] * len(words), [None] * len(words), values), 1)
        self._fake.appended()
        return [f"[{first}, {log.end})"]

    async def _trim(self, step: Step) -> list[str]:
        """`trim PARTITION OFFSET`: retention removes what lies before."""
        number, offset = step.args
        self._fake.log(TOPIC, int(number)).trim(int(offset))
        return []

    async def _move(self, step: Step) -> list[str]:
        """`move PARTITION BROKER`: another owner, a new epoch."""
        number, broker = step.args
        self._fake.move(TOPIC, int(number), int(broker))
        return []

    async def _stop(self, step: Step) -> list[str]:
        """`stop BROKER`: its process ends."""
        await self._fake.brokers[int(step.args[0])].stop()
        return []

    async def _start(self, step: Step) -> list[str]:
        """`start BROKER`: it is back at its address."""
        await self._fake.brokers[int(step.args[0])].start()
        return []

    async def _corrupt(self, step: Step) -> list[str]:
        """`corrupt BROKER N`: a bit of its next N replies with records is flipped on the way."""
        broker, count = step.args
        self._fake.brokers[int(broker)].faults.corrupt_fetches = int(count)
        return []

    # --- the consumer ---

    async def _consume(self, step: Step) -> list[str]:
        """`consume [from=earliest|latest|none]`: a consumer of all partitions."""
        if self._client is None:
            self._client = AsyncClient(self._fake.bootstrap, retry_backoff_ms=10)
        policy = step.options.get("from", "earliest")
        self._consumer = self._client.consumer(
            TOPIC, auto_offset_reset=policy, fetch_max_wait_ms=50
        )
        return []

    async def _poll(self, step: Step) -> list[str]:
        """`poll N`: exactly N records and no more, partition by partition; an error as it comes."""
        wanted = int(step.args[0])
        found: list[Record] = []
        while len(found) < wanted:
            polled = await self.consumer.poll(wanted - len(found), timeout=POLL_S)
            if not polled:
                return [f"only {len(found)} came"]
            found += polled
        if wanted == 0:
            found = await self.consumer.poll(1, timeout=QUIET_S)
        for record in found:
            expected = self._next.get(record.partition, record.offset)
            if record.offset != expected:
                self._skipped.append(f"{record.partition}: {record.offset}, not {expected}")
            self._next[record.partition] = record.offset + 1
        ordered = sorted(found, key=lambda record: (record.partition, record.offset))
        return [f"{r.partition}/{r.offset} {(r.value or b'').decode()}" for r in ordered]

    async def _seek(self, step: Step) -> list[str]:
        """`seek PARTITION OFFSET|beginning|end`, or `seek PARTITION time=MS`."""
        number, *where = step.args
        place = TopicPartition(TOPIC, int(number))
        if "time" in step.options:
            await self.consumer.seek_to_time(step.number("time", 0), place)
        elif where == ["beginning"]:
            await self.consumer.seek_to_beginning(place)
        elif where == ["end"]:
            await self.consumer.seek_to_end(place)
        else:
            await self.consumer.seek(place, int(where[0]))
        self._next.pop(place.partition, None)
        return []

    async def _pause(self, step: Step) -> list[str]:
        """`pause PARTITION..`: nothing more of them is handed out."""
        await self.consumer.pause(*self._places(step))
        return []

    async def _resume(self, step: Step) -> list[str]:
        """`resume PARTITION..`: they go on where they stopped."""
        await self.consumer.resume(*self._places(step))
        return []

    @staticmethod
    def _places(step: Step) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, int(word)) for word in step.args]

    async def _positions(self, _step: Step) -> list[str]:
        """`positions`: what `position()` says of each partition."""
        return [
            f"{place.partition}: {await self.consumer.position(place)}"
            for place in sorted(await self.consumer.assignment())
        ]

    async def _lag(self, _step: Step) -> list[str]:
        """`lag`: records behind the position, by partition."""
        found = await self.consumer.lag()
        return [f"{place.partition}: {found[place]}" for place in sorted(found)]

    async def _leave(self, _step: Step) -> list[str]:
        """`leave`: the consumer is closed; the next one begins anew."""
        await self.consumer.close()
        self._next.clear()
        return []

    # --- promises ---

    async def judge(self) -> None:
        """F8: no record is skipped, none comes twice."""
        assert not self._skipped, self._skipped

    async def close(self) -> None:
        """End everything."""
        if self._consumer is not None:
            await self._consumer.close()
        if self._client is not None:
            await self._client.close()
        await self._fake.stop()
