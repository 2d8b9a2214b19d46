"""Damage on the bookie wire: random frames with flipped bits, and how many were believed.

Each has one or a few. A damaged frame is *accepted* when the decoder hands it on and anything that
decides something came through: its type, flags, request id or head; or, for the entries behind the
head, when a damaged entry passes its own digest (E-2). `python -m tools.wire_flips --flips 1000000`
ends with a line `wire flips: tried=… refused=… waiting=0 accepted=0`; exit code 1 when one was
accepted, or left the reader waiting for bytes that a damaged length promised.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from typing import NamedTuple

from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import (
    Frame,
    FrameDecoder,
    FrameType,
    ReadRequest,
    Status,
    decode_add,
    decode_read_reply,
    encode_add,
    encode_add_ok,
    encode_add_reply,
    encode_frame,
    encode_read,
    encode_read_reply,
)
from octavo.proto.entry import encode_header, verify
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptEntry, OctavoError

ENTRY_BYTES_MAX = 1 << 20
FLIPS_AT_ONCE_MAX = 4


class Outcome(NamedTuple):
    """What became of damaged frames."""

    tried: int
    refused: int
    waiting: int
    accepted: int

    def __str__(self) -> str:
        return (
            f"wire flips: tried={self.tried} refused={self.refused} waiting={self.waiting} "
            f"accepted={self.accepted}"
        )


def sample_frames(rng: random.Random) -> Iterator[bytes]:
    """One frame of each kind with random contents; endless."""
    while True:
        request_id = rng.getrandbits(rng.choice((3, 16, 64)))
        ledger, first, lac = rng.getrandbits(40), rng.getrandbits(20), rng.getrandbits(20)
        incarnation = rng.randbytes(16)
        name = incarnation.hex()
        statuses = [rng.choice(list(Status)) for _ in range(rng.randint(1, 20))]
        stored = [_entry(rng, ledger, first + i) for i in range(rng.randint(0, 6))]
        yield b"".join(encode_add(request_id, incarnation, [[e] for e in stored]))
        yield encode_add_ok(request_id)
        yield encode_add_reply(request_id, statuses)
        request = ReadRequest(incarnation, ledger, first, 1 + rng.getrandbits(12), 1 << 20)
        yield encode_read(request_id, request, rng.getrandbits(2))
        reply = encode_read_reply(request_id, statuses[0], lac, stored)
        yield b"".join(map(bytes, reply))
        for kind, message in (
            (FrameType.HELLO, bookie_pb2.Hello(protocol_version=2, client_name=name)),
            (FrameType.HELLO_REPLY, bookie_pb2.HelloReply(bookie_id="b", incarnation=name)),
            (FrameType.FENCE, bookie_pb2.FenceRequest(ledger_id=ledger, incarnation=name)),
            (FrameType.FENCE_REPLY, bookie_pb2.FenceReply(status=statuses[0])),
            (FrameType.READ_LAC, bookie_pb2.ReadLacRequest(ledger_id=ledger, previous=lac)),
            (FrameType.READ_LAC_REPLY, bookie_pb2.ReadLacReply(status=statuses[0], fenced=True)),
            (FrameType.WRITE_LAC, bookie_pb2.WriteLac(ledger_id=ledger, last_add_confirmed=lac)),
            (FrameType.WRITE_LAC_REPLY, bookie_pb2.WriteLacReply(status=statuses[0])),
            (FrameType.ERROR, bookie_pb2.ErrorReply(status=statuses[0], cause=name)),
        ):
            yield encode_frame(kind, request_id, message.SerializeToString())
        yield encode_frame(FrameType.PING, request_id)


def _entry(rng: random.Random, ledger: int, entry: int) -> bytes:
    payload = rng.randbytes(rng.randint(0, 200))
    return encode_header(ledger, entry, entry - 1, len(payload), payload) + payload


def damage(rng: random.Random, frame: bytes) -> bytes:
    """The frame with one to four bits flipped, most often one."""
    count = 1 if rng.random() < 0.7 else rng.randint(2, FLIPS_AT_ONCE_MAX)
    changed = bytearray(frame)
    for bit in rng.sample(range(8 * len(frame)), count):
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def entries_of(frame: Frame) -> list[Buffer]:
    """The entries behind a frame's head."""
    if frame.type == FrameType.ADD:
        return decode_add(frame.body, ENTRY_BYTES_MAX).entries
    if frame.type == FrameType.READ_REPLY:
        return decode_read_reply(frame.body, ENTRY_BYTES_MAX).entries
    return []


def believed(sent: Frame, got: Frame) -> bool:
    """True if damage passed: the frame differs, and not only in entries that fail their digest."""
    if got[:3] != sent[:3] or len(got.body) != len(sent.body):
        return True
    before, after = entries_of(sent), entries_of(got)
    size = len(sent.body) - sum(map(len, before))
    if not before or bytes(got.body[:size]) != bytes(sent.body[:size]):
        return True
    for old, new in zip(before, after, strict=True):
        if bytes(old) != bytes(new):
            try:
                verify(new)
            except CorruptEntry:
                continue
            return True
    return False


def run(seed: int, flips: int) -> Outcome:
    """Damage `flips` frames and count."""
    rng = random.Random(seed)
    refused = waiting = accepted = 0
    frames = sample_frames(rng)
    for _ in range(flips):
        whole = next(frames)
        (sent,) = FrameDecoder().feed(whole)
        try:
            found = FrameDecoder().feed(damage(rng, whole))
        except OctavoError:
            refused += 1
            continue
        if not found:
            waiting += 1
        elif any(believed(sent, got) for got in found):
            accepted += 1
        else:
            refused += 1
    return Outcome(flips, refused, waiting, accepted)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description="flip bits of bookie frames and count the believed"
    )
    parser.add_argument("--flips", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcome = run(arguments.seed, arguments.flips)
    sys.stdout.write(f"{outcome}\n")
    return 1 if outcome.accepted or outcome.waiting else 0


if __name__ == "__main__":
    sys.exit(main())
