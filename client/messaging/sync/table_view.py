"""The blocking table of a topic.

Written by `tools/gen_sync.py` from `api/table_view.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from octavo.client.messaging.sync.by_hand import TableViewByHand


class TableView(TableViewByHand):
    """The last value of each key of topics; made by `Client.table_view()`.

    Reading is safe from many threads.

    `with` loads everything up to the end offsets seen then, and follows from there on. Rows
    are in memory. Keys that lie in several partitions, because partitions were added, have the
    value that was read last.
    """

    def refresh(self, timeout: float | None = 30.0) -> None:
        """Return when the table has everything up to the end offsets seen at the call.

        So a record that was acknowledged before is in it. Raises RequestTimedOut, and the error
        that ended following.
        """
        self._thread.run(self._async.refresh(timeout))
