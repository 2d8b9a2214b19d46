"""The blocking admin of sinks.

Written by `tools/gen_sync.py` from `api/sink_admin.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from octavo.client.messaging.api.descriptions import SinkDescription
from octavo.client.messaging.api.fleet_admin import DEFAULT_TIMEOUT_S
from octavo.client.messaging.sync.quota_admin import QuotaAdmin


class SinkAdmin(QuotaAdmin):
    """The part of `client.admin` that knows of sinks.

    A sink is a query of Spark, known by its checkpoint, or a batch write, known by its `txnId`. The
    cluster remembers each for as long as it may come again, which nobody but its user knows.
    """

    def list_sinks(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[SinkDescription]:
        """Every sink, by id. It is the whole list, or an error."""
        return self._thread.run(self._async.list_sinks(timeout=timeout))

    def describe_sink(self, sink_id: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> SinkDescription:
        """One sink. Raises InvalidRequest when the cluster knows none of that id."""
        return self._thread.run(self._async.describe_sink(sink_id, timeout=timeout))

    def end_sink(self, sink_id: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> SinkDescription:
        """Have a sink decide nothing any more, for ever; returns what is known of it then.

        A batch that was decided and not published is given up, though some of its rows may be in
        their topic; brokers delete what it staged. Its query fails with SINK_ENDED from then on.
        Raises InvalidRequest when the cluster knows none of that id.
        """
        return self._thread.run(self._async.end_sink(sink_id, timeout=timeout))
