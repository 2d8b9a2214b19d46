"""What each codec makes of a batch of JSON (F039), and what a broker pays for another one.

`python -m bench.codecs` prints one line: how many times smaller 64 KiB of repetitive JSON is, and
how many MB of it one thread recompresses in a second. 1 when LZ4's ratio is below 3.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from octavo.proto.batch import encode
from octavo.proto.compression import CODECS, Codec
from octavo.proto.opened_batches import recompress

BATCH_BYTES = 64 * 1024
ROUNDS = 50
RATIO_MIN = 3.0


def records() -> Iterator[bytes]:
    """Lines as of a log of clicks: the same names, some values that change."""
    for n in range(BATCH_BYTES):
        line = {"event": "click", "user": f"user-{n * 7919 % 1000}", "page": f"/items/{n % 50}"}
        yield json.dumps(line | {"sequence": n, "ok": n % 9 != 0}).encode()


def main() -> int:
    """Measure and print; the exit code."""
    values: list[bytes | None] = []
    size = 0
    for one in records():
        if size >= BATCH_BYTES:
            break
        values.append(one)
        size += len(one)
    plain = encode([0] * len(values), [None] * len(values), values, codec=Codec.NONE)
    parts: list[str] = []
    ratios: dict[int, float] = {}
    for name, codec in CODECS.items():
        if codec == Codec.NONE:
            continue
        made = plain
        start_s = time.perf_counter()
        for _ in range(ROUNDS):
            made = recompress(plain, codec)
        spent_s = time.perf_counter() - start_s
        ratios[codec] = len(plain) / len(made)
        parts.append(f"{name}={ratios[codec]:.1f}x@{ROUNDS * len(plain) / spent_s / 1e6:.0f}MB/s")
    print(f"codecs: {len(values)} records of JSON, {len(plain)} bytes: {' '.join(parts)}")
    return 0 if ratios[Codec.LZ4] >= RATIO_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
