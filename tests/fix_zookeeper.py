"""Fixtures: a real ZooKeeper 3.9 from the jars that PySpark ships (spec/spark.md §11)."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pytest

from octavo.runtime.entropy import SystemEntropy
from octavo.supervisor.ports import choose_free

_JARS = (
    "zookeeper-3*",
    "zookeeper-jute*",
    "slf4j-api*",
    "log4j-slf4j2*",
    "log4j-api*",
    "log4j-core*",
    "metrics-core*",
    "snappy-java*",
)
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
_LOG4J = """\
rootLogger.level=warn
rootLogger.appenderRef.c.ref=c
appender.c.type=Console
appender.c.name=c
"""
_TICK_MS = 200
_START_TIMEOUT_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True)
class ZookeeperServer:
    """A running single-node ZooKeeper."""

    hosts: str
    port: int
    process: subprocess.Popen[bytes]


def free_port() -> int:
    """Free now, and of those that the system gives to nobody who does not ask for that one."""
    return choose_free("127.0.0.1", set(), SystemEntropy())


def _class_path() -> str:
    import pyspark  # heavy: only where a server is really wanted

    jars = pathlib.Path(pyspark.__file__).parent / "jars"
    found = [str(path) for pattern in _JARS for path in jars.glob(pattern + ".jar")]
    if len(found) < len(_JARS):
        pytest.fail(f"ZooKeeper's jars are not in {jars}; install pyspark 4.3")
    return os.pathsep.join(found)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"srvr")
            return b"Mode" in b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return False


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: pathlib.Path) -> None:
    for _ in range(round(_START_TIMEOUT_S / _POLL_S)):
        if _answers(port):
            return
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        break
    pytest.fail(f"ZooKeeper did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """One ZooKeeper node on a free port, for the whole session."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@contextlib.contextmanager
def running_zookeeper(work: pathlib.Path) -> Generator[ZookeeperServer]:
    """One ZooKeeper node on a free port with its files in `work`; ended with the block."""
    java = shutil.which("java")
    if java is None:
        pytest.fail("these tests start a real ZooKeeper: install Java 17")
    port = free_port()
    (work / "log4j2.properties").write_text(_LOG4J)
    (work / "myid").write_text("1")
    config = work / "zoo.cfg"
    config.write_text(
        f"tickTime={_TICK_MS}\ninitLimit=10\nsyncLimit=5\ndataDir={work}\nclientPort={port}\n"
        "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        "4lw.commands.whitelist=*\n"
    )
    log = work / "zookeeper.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                java,
                *_JAVA,
                f"-Dlog4j2.configurationFile={work / 'log4j2.properties'}",
                "-cp",
                _class_path(),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(config),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_ready(process, port, log)
        yield ZookeeperServer(f"127.0.0.1:{port}", port, process)
    finally:
        process.terminate()
        process.wait()
