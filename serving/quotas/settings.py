"""The quotas of a broker's clients, from its own settings and the cluster's record."""

from __future__ import annotations

from octavo.metadata.paths import Paths
from octavo.metadata.quotas import QuotaCatalog, QuotaLimits
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.serving.config import BrokerConfig
from octavo.serving.quotas.clients import ClientQuotas


def quotas_of(
    config: BrokerConfig, store: MetadataStore, paths: Paths, clock: Clock, entropy: Entropy
) -> tuple[QuotaCatalog, ClientQuotas]:
    """What is noted of single clients, to be started, and the quotas that follow it."""
    quotas = ClientQuotas(
        QuotaLimits(
            config.client_bytes_in_per_s,
            config.client_bytes_out_per_s,
            config.client_requests_per_s,
            config.client_connections_max,
        )
    )
    catalog = QuotaCatalog(
        store,
        paths,
        clock=clock,
        entropy=entropy,
        changed=lambda own: quotas.adopt(own, clock.monotonic()),
    )
    return catalog, quotas
