"""Where each process of a cluster listens and keeps its files; addresses survive restarts."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

from octavo.runtime.address import join_address
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import ConfigError
from octavo.supervisor import ports
from octavo.supervisor.cluster_file import ClusterFile
from octavo.supervisor.spec import EMBEDDED, ROOT_KEY, ChildSpec, ClusterSpec, Role

SESSION_TIMEOUT_S = "4"
"""All processes share one machine: a killed one may be forgotten, and started again, this soon."""

METADATA_FOLDER = "metadata"
"""Of the data folder: what the embedded store keeps."""

JOURNAL_SEGMENT_BYTES = str(64 << 20)
"""All bookies share a disk here: smaller pieces to preallocate, and to read at replay."""


class Layout(NamedTuple):
    """The plan of one start."""

    metadata_url: str
    metadata_port: int | None
    """Port on which the supervisor must serve the store itself; None for an outside store."""
    children: tuple[ChildSpec, ...]

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, comma separated."""
        return ",".join(child.address for child in self.children if child.role == "broker")


def plan(spec: ClusterSpec, old: ClusterFile | None, entropy: Entropy) -> Layout:
    """Choose ports, preferring those of the last start; raises when a wanted port is taken."""
    if old is not None and spec.bookies < old.bookies:
        raise ConfigError(
            f"this data folder belongs to {old.bookies} bookies, not {spec.bookies}",
            hint=f"start it with --bookies {old.bookies}: each of them holds acknowledged data",
        )
    fixed = [spec.port + i for i in range(spec.brokers)] if spec.port else []
    ports.require_free(spec.host, fixed)
    taken = set(fixed)
    metadata_port = None
    metadata_url = spec.metadata
    if spec.metadata == EMBEDDED:
        before = _port_of(old.metadata.removesuffix(ROOT_KEY)) if old is not None else None
        metadata_port = ports.choose_free(spec.host, taken, entropy, before)
        metadata_url = f"embedded://{join_address(spec.host, metadata_port)}{ROOT_KEY}"
    children: list[ChildSpec] = []
    for number, (role, name) in enumerate(spec.child_names()):
        known = old.child(name) if old is not None else None
        before = _port_of(known.address) if known is not None else None
        before_health = _port_of(known.health_address) if known is not None else None
        if role == "broker" and fixed:
            port = fixed[number - spec.bookies]
        else:
            port = ports.choose_free(spec.host, taken, entropy, before)
        control = None
        if role == "bookie":
            control = ports.choose_free(spec.host, taken, entropy, before_health)
        before_metrics = _port_of(known.metrics_address) if known is not None else None
        metrics = ports.choose_free(spec.host, taken, entropy, before_metrics)
        children.append(_child(spec, role, name, port, control, metadata_url, metrics_port=metrics))
    return Layout(metadata_url, metadata_port, tuple(children))


def _child(
    spec: ClusterSpec,
    role: Role,
    name: str,
    port: int,
    control_port: int | None,
    url: str,
    *,
    metrics_port: int,
) -> ChildSpec:
    settings = {"metrics_port": str(metrics_port)}
    if role == "bookie":
        settings |= {
            "metadata_session_timeout_s": SESSION_TIMEOUT_S,
            "segment_bytes": JOURNAL_SEGMENT_BYTES,
            **spec.bookie_settings,
        }
    else:
        settings |= {"session_timeout_s": SESSION_TIMEOUT_S, **spec.quorum_settings()}
        settings.update(spec.broker_settings)
    return ChildSpec(
        role=role,
        name=name,
        host=spec.host,
        port=port,
        control_port=control_port,
        metadata_url=url,
        data_dir=spec.data_dir / name,
        log=log_path(spec.data_dir, name),
        settings=settings,
    )


def log_path(data_dir: pathlib.Path, name: str) -> pathlib.Path:
    """Log file of the process called `name`."""
    return data_dir / "logs" / f"{name}.log"


def _port_of(address: str) -> int | None:
    tail = address.rpartition(":")[2]
    return int(tail) if tail.isdigit() else None
