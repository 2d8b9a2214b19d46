"""The blocking reader.

Written by `tools/gen_sync.py` from `api/reader.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from octavo.client.messaging.sync.by_hand import ReaderByHand
from octavo.client.messaging.sync.consumer import Consumer


class Reader(ReaderByHand, Consumer):
    """Reads all (or chosen) partitions of topics from `start`; made by `Client.reader()`.

    For one thread at a time.

    The start is fixed when reading begins: at `with`, or at the first call.
    """
