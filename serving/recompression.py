"""Batches under the codec that their topic asks for (F039), beside the event loop.

Only where a batch came under another one: what a topic does not ask for costs nothing. A batch that
would not fit the topic's limits under its codec stays as it was sent, for every reader can open it.
"""

from __future__ import annotations

from octavo.proto import batch as batches
from octavo.proto.opened_batches import recompress
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import MessageTooLarge
from octavo.runtime.workers import WorkerPool

THREADS = 2
"""Batches that one broker works on at a time, each of 8 MiB uncompressed at most. A connection has
one of them or waits with one: what follows it is not taken before."""


class Recompressor:
    """Of one broker."""

    def __init__(self) -> None:
        self._pool = WorkerPool("recompress", THREADS, waiting_max=THREADS)

    async def under(self, codec: int, batch: Buffer, limit_bytes: int) -> Buffer:
        """`batch` under `codec`; as it is when it is so already, or is larger than the limit now
        (whoever checks it refuses it) or would be then.

        Raises CorruptBatch or UnsupportedVersion. Cancelled, it leaves the work to its end.
        """
        is_batch = batches.HEADER_BYTES <= len(batch) <= limit_bytes
        if not is_batch or batch[batches.CODEC_AT] == codec:
            return batch
        try:
            made = await self._pool.run(recompress, batch, codec)
        except MessageTooLarge:
            return batch
        return made if len(made) <= limit_bytes else batch

    async def close(self) -> None:
        """End the threads, once what they work on is done."""
        await self._pool.close()
