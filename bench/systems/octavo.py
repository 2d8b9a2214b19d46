"""Octavo as `octavo up` runs it: three bookies, one broker, embedded metadata."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import grpc

import octavo
from bench.systems import System
from octavo import Client
from octavo.testing import LocalCluster


class Octavo(System):
    """fdatasync on two of three bookies before the acknowledgement."""

    name = "octavo"
    setting = "fsync before ack"
    driver = "octavo"
    has_arrow = True
    has_lz4 = True

    def __init__(self, folder: pathlib.Path, *, brokers: int = 1) -> None:
        super().__init__(folder)
        self._brokers = brokers
        self._cluster: LocalCluster | None = None

    def prepare(self) -> None:
        return

    def start(self) -> None:
        self._cluster = LocalCluster(3, self._brokers, data=self.folder / "octavo")
        self._cluster.start()

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    @property
    def cluster(self) -> LocalCluster:
        """The running cluster."""
        if self._cluster is None:
            raise RuntimeError("octavo was not started")
        return self._cluster

    def endpoint(self) -> Mapping[str, str]:
        return {"servers": self.cluster.bootstrap_servers}

    def processes(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {"metadata": [self.cluster.cluster.supervisor_pid]}
        for name, entry in self.cluster.processes.items():
            found.setdefault(name.rpartition("-")[0], []).append(entry.pid)
        return found

    def create_topic(self, name: str, partitions: int) -> None:
        with Client(self.cluster.bootstrap_servers) as client:
            client.admin.create_topic(name, partitions=partitions)

    def versions(self) -> Mapping[str, str]:
        return {"octavo": octavo.__version__, "grpcio": grpc.__version__}

    def forget_caches(self, topics: Sequence[str]) -> None:
        """A restarted broker has an empty tail cache; the bookies keep none of records."""
        for name in [name for name in self.cluster.processes if name.startswith("broker-")]:
            self.cluster.terminate(name)
            self.cluster.restart(name)
        with Client(self.cluster.bootstrap_servers) as client:
            for topic in topics:  # asking for offsets makes the new broker load the partitions
                client.admin.list_offsets(topic)
