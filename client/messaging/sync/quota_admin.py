"""The blocking admin of quotas.

Written by `tools/gen_sync.py` from `api/quota_admin.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from octavo.client.messaging.api.descriptions import ClientQuota
from octavo.client.messaging.api.fleet_admin import DEFAULT_TIMEOUT_S
from octavo.client.messaging.sync.fleet_admin import FleetAdmin


class QuotaAdmin(FleetAdmin):
    """The part of `client.admin` that knows of quotas.

    A quota is per broker and per client id, over all streams of that id: a client that uses three
    brokers may use three times as much.
    """

    def list_quotas(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[ClientQuota]:
        """The default of the broker that answers, under the id "", and then, by id, every client
        with quotas of its own."""
        return self._thread.run(self._async.list_quotas(timeout=timeout))

    def set_quota(
        self,
        client_id: str,
        *,
        bytes_in_per_s: int | None = None,
        bytes_out_per_s: int | None = None,
        requests_per_s: int | None = None,
        connections_max: int | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> ClientQuota:
        """Change what a client id may use of each broker; returns all that it has of its own.

        None leaves a value as it is, 0 sets no limit. Counts at every broker at once, for clients
        that are connected too; connections that are open stay open. A client over its rate is
        slowed down, and one that goes on is answered THROTTLED; further connections are refused.
        Raises InvalidConfig, InvalidRequest.
        """
        return self._thread.run(
            self._async.set_quota(
                client_id,
                bytes_in_per_s=bytes_in_per_s,
                bytes_out_per_s=bytes_out_per_s,
                requests_per_s=requests_per_s,
                connections_max=connections_max,
                timeout=timeout,
            )
        )

    def unset_quota(self, client_id: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Take back what a client id has of its own: the brokers' default counts for it again."""
        self._thread.run(self._async.unset_quota(client_id, timeout=timeout))
