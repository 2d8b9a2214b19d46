"""From a metadata URL to a connected store: the one place that knows all implementations.

    zk://host1:2181,host2:2181/octavo    ZooKeeper (production)
    embedded://127.0.0.1:7660/octavo     the supervisor of a one-command cluster
    memory://name/octavo                 shared inside one process, for tests

Any other URL is a ConfigError.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.memory import MemoryCluster
from octavo.metadata.store import MetadataStore
from octavo.metadata.zookeeper import ZookeeperStore
from octavo.runtime.address import split_address
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import ConfigError

SESSION_TIMEOUT_S = 6.0
EMBEDDED_LEASE_S = 3.0
"""On one machine only a stopped process goes silent; notice it sooner."""

_SCHEMES = ("zk", "embedded", "memory")
_memory_clusters: dict[str, MemoryCluster] = {}


class MetadataUrl(NamedTuple):
    """A parsed metadata URL."""

    scheme: str
    hosts: str
    root: str


def parse_url(url: str) -> MetadataUrl:
    """Split a metadata URL; raises ConfigError."""
    scheme, found, rest = url.partition("://")
    hosts, _, root = rest.partition("/")
    if not found or scheme not in _SCHEMES or not hosts or not root.strip("/"):
        raise ConfigError(
            f"not a metadata URL: {url!r}",
            hint="zk://host:2181/octavo, embedded://host:port/octavo or memory://name/octavo",
        )
    if scheme != "memory":
        for host in hosts.split(","):
            _check_host(url, host)
    return MetadataUrl(scheme, hosts, "/" + root.strip("/"))


def _check_host(url: str, host: str) -> None:
    split_address(host, what=f"metadata URL {url!r}: host")


def root_of(url: str) -> str:
    """The key under which the cluster lives, for `Paths`; raises ConfigError."""
    return parse_url(url).root


def memory_cluster(name: str, clock: Clock | None = None) -> MemoryCluster:
    """The in-process cluster behind `memory://name/…`, made on first use."""
    cluster = _memory_clusters.get(name)
    if cluster is None:
        cluster = _memory_clusters[name] = MemoryCluster(clock=clock)
    return cluster


async def connect_store(
    url: str,
    *,
    client_name: str,
    session_timeout_s: float | None = None,
    clock: Clock,
    entropy: Entropy,
) -> MetadataStore:
    """A store with a live session. Raises ConfigError, MetadataUnavailable.

    `session_timeout_s` None means the default of the scheme.
    """
    scheme, hosts, _ = parse_url(url)
    if scheme == "memory":
        return memory_cluster(hosts, clock).connect()
    if scheme == "zk":
        return await _connect_zookeeper(hosts, session_timeout_s or SESSION_TIMEOUT_S)
    store = EmbeddedStore(
        hosts,
        client_name=client_name,
        session_timeout_s=session_timeout_s or EMBEDDED_LEASE_S,
        clock=clock,
        entropy=entropy,
    )
    await store.start()
    return store


async def _connect_zookeeper(hosts: str, session_timeout_s: float) -> MetadataStore:
    store = ZookeeperStore(hosts, session_timeout_s=session_timeout_s)
    await store.start()
    return store
