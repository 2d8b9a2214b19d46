"""Damage of the embedded metadata store's files, and how much of it was believed.

A store with each kind of record, part of it in the main file and part in the write-ahead log, as a
killed cluster leaves it. Each trial damages one place of one file and opens it. *Accepted* means
that a record had another value or version, was absent, or a directory listed other children,
without a typed refusal. `python -m tools.metadata_flips --flips 2000` ends with a line
`metadata flips: tried=… harmless=… refused=… by-name=… accepted=0`; exit code 1 when one was.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable
from typing import NamedTuple

from octavo.metadata.bookies import Cookie
from octavo.metadata.brokers import BrokerInfo
from octavo.metadata.bundles import BundleOwner
from octavo.metadata.embedded_file import FILE_NAME
from octavo.metadata.embedded_proof import Witness
from octavo.metadata.embedded_tree import SessionRow, SqliteTree
from octavo.metadata.envelope import seal
from octavo.metadata.keys import parent_of
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.metadata.partition_record import PartitionState
from octavo.metadata.paths import Paths
from octavo.metadata.store import Versioned
from octavo.metadata.topics import Topic
from octavo.proto.segments import Segment
from octavo.runtime.errors import MetadataCorrupt, OctavoError
from octavo.runtime.ids import EntryId, LedgerId, Member
from octavo.runtime.telemetry import configure_logging

PATHS = Paths("/octavo")
FILES = (FILE_NAME, f"{FILE_NAME}-wal", Witness.FILE_NAME)
Damage = Callable[[random.Random, bytearray], None]


class Truth(NamedTuple):
    """What was written and answered."""

    records: dict[str, Versioned]
    children: dict[str, list[str]]
    sessions: list[SessionRow]


def flip_bit(rng: random.Random, data: bytearray) -> None:
    """Change one bit."""
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zero_sector(rng: random.Random, data: bytearray) -> None:
    """Lose one sector of 512 bytes."""
    at = rng.randrange(len(data)) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))


def cut(rng: random.Random, data: bytearray) -> None:
    """Lose the end."""
    del data[rng.randrange(len(data)) :]


def empty(_rng: random.Random, data: bytearray) -> None:
    """Lose everything but the name."""
    data.clear()


def fill(
    folder: pathlib.Path, rng: random.Random, ledgers: int = 300
) -> tuple[Truth, dict[str, bytes]]:
    """Write a store; its files as a killed process would leave them, not closed."""
    tree = SqliteTree(folder)
    members = tuple(Member(f"bookie-{i}", uuid.UUID(int=rng.getrandbits(128))) for i in range(3))
    topic = Topic("orders", uuid.UUID(int=rng.getrandbits(128)), 4, {"segment.bytes": "1"}, 1)

    def ledger(number: int) -> bytes:
        fragments = ((EntryId(0), members),)
        record = LedgerMetadata(
            LedgerId(number), Quorum(3, 3, 2), LedgerState.OPEN, fragments, ctime_ms=1
        )
        return seal(record.closed(EntryId(100 + number), 5_000 + number).to_bytes())

    def partition(number: int, epoch: int) -> bytes:
        listed = tuple(Segment(LedgerId(i), i * 10, i * 10 + 10, 5) for i in range(10))
        return seal(PartitionState(topic.topic_id, number, listed, epoch, 10).to_bytes())

    def write(first: int, last: int) -> None:
        for number in range(first, last):
            tree.create(PATHS.ledger(LedgerId(number)), ledger(number), 0)
            tree.fetch_add(PATHS.idgen_epoch(0))

    session = tree.open_session(rng.randbytes(16), 3_000)
    write(1, ledgers * 9 // 10)
    tree.create(PATHS.topic("orders"), seal(topic.to_bytes()), 0)
    for number in range(4):
        tree.create(PATHS.partition(topic.topic_id, number), partition(number, 0), 0)
        owner = BundleOwner(f"broker-{number}", "127.0.0.1:1", rng.randbytes(16))
        tree.create(PATHS.bundle(number), seal(owner.to_bytes()), session)
        cookie = Cookie(f"bookie-{number}", "cluster", uuid.UUID(int=number))
        tree.create(PATHS.cookie(cookie.bookie_id), seal(cookie.to_bytes()), 0)
    broker = BrokerInfo("broker-1", "127.0.0.1:1", rng.randbytes(16), 1)
    tree.create(PATHS.broker("broker-1"), seal(broker.to_bytes()), session)
    tree.close()
    tree = SqliteTree(folder)
    write(ledgers * 9 // 10, ledgers)
    for number in range(4):
        tree.put(PATHS.partition(topic.topic_id, number), partition(number, 1), 0)
    tree.delete(PATHS.ledger(LedgerId(3)), 0)
    tree.fetch_add(PATHS.producer_ids)
    truth, files = _truth(tree), {name: (folder / name).read_bytes() for name in FILES}
    tree.close()
    return truth, files


def _truth(tree: SqliteTree) -> Truth:
    records: dict[str, Versioned] = {}
    children = {directory: tree.children(directory) for directory in tree.directories()}
    for directory, names in children.items():
        for name in names:
            key = f"{directory.rstrip('/')}/{name}"
            found = tree.get(key)
            assert found is not None
            records[key] = found
    return Truth(records, children, tree.sessions())


def verdict(folder: pathlib.Path, truth: Truth) -> str:
    """What a damaged store says: harmless, refused, by-name, or what it made somebody believe."""
    try:
        tree = SqliteTree(folder)
    except OctavoError:
        return "refused"
    named = 0
    try:
        for directory, names in truth.children.items():
            if tree.children(directory) != names:
                return f"WRONG CHILDREN of {directory}"
        for key, written in truth.records.items():
            try:
                found = tree.get(key)
            except MetadataCorrupt:
                named += 1
                continue
            if found != written:
                return f"{'ABSENT' if found is None else 'WRONG'} {key}"
        for key in (f"{parent_of(PATHS.ledger(LedgerId(1)))}/9999", f"{PATHS.bundles}/99"):
            if tree.get(key) is not None:
                return f"INVENTED {key}"
        if tree.sessions() != truth.sessions:
            return "WRONG SESSIONS"
    finally:
        tree.close()
    return "by-name" if named else "harmless"


def run(seed: int, trials: int, damage: Damage = flip_bit) -> collections.Counter[str]:
    """Damage a store `trials` times; the counts by verdict. Verdicts in capitals are faults."""
    rng = random.Random(seed)
    seen: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="octavo-flips-") as name:
        root = pathlib.Path(name)
        truth, whole = fill(root / "written", rng)
        work = root / "work"
        for trial in range(trials):
            work.mkdir()
            hit = FILES[trial % 2] if trial % 20 else FILES[2]
            for file, data in whole.items():
                changed = bytearray(data)
                if file == hit:
                    damage(rng, changed)
                (work / file).write_bytes(changed)
            seen[verdict(work, truth)] += 1
            shutil.rmtree(work)
    return seen


def faults(seen: collections.Counter[str]) -> dict[str, int]:
    """The verdicts that must not be."""
    return {what: count for what, count in seen.items() if what[0].isupper()}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="damage metadata files and count the believed")
    parser.add_argument("--flips", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    configure_logging("CRITICAL")
    bad: dict[str, int] = {}
    for damage in (flip_bit, zero_sector, cut):
        trials = arguments.flips if damage is flip_bit else arguments.flips // 10
        seen = run(arguments.seed, trials, damage)
        bad.update(faults(seen))
        sys.stdout.write(
            f"metadata {damage.__name__}: tried={trials} harmless={seen['harmless']} "
            f"refused={seen['refused']} by-name={seen['by-name']} "
            f"accepted={sum(faults(seen).values())}\n"
        )
    for what, count in bad.items():
        sys.stdout.write(f"  {count} x {what}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
