"""The compacted topic of `tools.life_soak`: written by key while servers die and cleaners run.

What counts is a dict of all acknowledged records, in the order of each key. A table that follows
all the time, and a reader from the start at the end, must hold the same (K4, F085, F086). A key
whose last record has an unknown outcome may have either value; it is counted, not judged.
"""

from __future__ import annotations

import random
import threading

from octavo import Client
from octavo.client.messaging.producing.futures import SendFuture
from octavo.runtime.errors import BufferFull, OctavoError

TOPIC = "life-table"
PARTITIONS = 2
KEYS = 400
TOMBSTONE_SHARE = 0.1
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "65536",
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "20000",
}
SENDS_PER_S = 500
TIMEOUT_S = 60.0
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""
Row = bytes | None
"""A value; None: deleted."""


class KeyedSender(threading.Thread):
    """Writes values and tombstones of a bounded number of keys."""

    def __init__(self, servers: str, ends: threading.Event, seed: int) -> None:
        super().__init__(name="keyed-sender", daemon=True)
        self._servers = servers
        self._ends = ends
        self._rng = random.Random(seed)
        self.sent: dict[bytes, list[tuple[Row, SendFuture]]] = {}
        self.wrong: list[str] = []

    def run(self) -> None:
        try:
            self._send()
        except OctavoError as error:
            self.wrong.append(f"the keyed sender failed: {error}")

    def _send(self) -> None:
        rng = self._rng
        with Client(self._servers) as client, client.producer(linger_ms=2) as producer:
            number = 0
            while not self._ends.is_set():
                key = b"key-%d" % rng.randrange(KEYS)
                is_deleted = rng.random() < TOMBSTONE_SHARE
                value = None if is_deleted else b"%d:" % number + rng.randbytes(400)
                try:
                    future = producer.send_nowait(TOPIC, value, key=key)
                    self.sent.setdefault(key, []).append((value, future))
                    number += 1
                except BufferFull:
                    _LASTS.wait(0.1)
                _LASTS.wait(1 / SENDS_PER_S)
            producer.flush(TIMEOUT_S)

    def wanted(self) -> tuple[dict[bytes, Row], set[bytes]]:
        """The last acknowledged value of each key, and the keys that may have another one."""
        want: dict[bytes, Row] = {}
        unsure: set[bytes] = set()
        for key, sends in self.sent.items():
            for value, future in sends:
                if future.exception(timeout=TIMEOUT_S) is None:
                    want[key] = value
                    unsure.discard(key)
                else:
                    unsure.add(key)
        return want, unsure


def judge(client: Client, sender: KeyedSender, table: dict[bytes, bytes]) -> list[str]:
    """Compare a reader from the start, and the table that followed, with what was acknowledged."""
    want, unsure = sender.wanted()
    wrong = list(sender.wrong)
    last: dict[bytes, Row] = {}
    offsets = [-1] * PARTITIONS
    with client.reader(TOPIC, start="earliest") as reader:
        for record in reader.read_to_end():
            if record.offset <= offsets[record.partition]:
                wrong.append(f"table {record.partition}: {record.offset} was read again")
            offsets[record.partition] = record.offset
            last[bytes(record.key or b"")] = record.value
    for name, rows in (("the reader from the start", last), ("the table", table)):
        for key in want.keys() | rows.keys():
            if key not in unsure and rows.get(key) != want.get(key):
                told, held = _short(want.get(key)), _short(rows.get(key))
                wrong.append(f"{name} has {held} for {key!r}, acknowledged was {told}")
    return wrong


def _short(value: Row) -> str:
    return "nothing" if value is None else repr(value.partition(b":")[0])
