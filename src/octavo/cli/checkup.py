"""The checks of `octavo doctor`, in the order in which one depends on another."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from functools import partial

from octavo import __version__
from octavo.cli.failures import EXTRA_OF
from octavo.cli.finding import Check, Finding, Verdict
from octavo.cli.session import PROXY_VARIABLE, connected
from octavo.runtime.address import split_address
from octavo.runtime.errors import OctavoError
from octavo.runtime.system_errors import explained
from octavo.supervisor.cluster_file import read_cluster_file
from octavo.supervisor.disks import size_of
from octavo.supervisor.ports import is_free, listener
from octavo.supervisor.spec import DEFAULT_PORT

JAVA_MIN = 17
JAVA_TIMEOUT_S = 10.0
OPEN_FILES_MIN = 4096
SYNCS_MAX = 100
SYNC_TIME_MAX_S = 1.0
SYNC_BYTES = 4096
SYNCS_PER_S_MIN = 50
CLOCK_JUMP_S_MAX = 0.25
DISK_WARN_RATIO = 0.9
DISK_FULL_RATIO = 0.95
"""From here on a bookie is read-only (disk_read_only_ratio)."""
OLDEST_YEAR = 2024
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
_DISTRIBUTIONS = {"grpc_health": "grpcio-health-checking", "pydantic_settings": "pydantic-settings"}


def checks(data: pathlib.Path, bootstrap: str, timeout_s: float) -> list[Check]:
    """All checks of a data folder (which need not exist) and of a cluster."""
    return [
        packages,
        java,
        open_files,
        proxies,
        partial(disk, data),
        partial(ports, data),
        partial(cluster, bootstrap, timeout_s),
    ]


def packages() -> Iterator[Finding]:
    """Python and the packages of each extra."""
    versions: list[str] = []
    missing: dict[str, list[str]] = {}
    for module, extra in {"grpc": "", "google": "", "pyarrow": "", **EXTRA_OF}.items():
        name = {"grpc": "grpcio", "google": "protobuf", **_DISTRIBUTIONS}.get(module, module)
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.setdefault(extra, []).append(name)
    yield Finding("python", Verdict.OK, f"{platform.python_version()}, octavo {__version__}")
    yield Finding("packages", Verdict.OK, ", ".join(versions))
    for extra, names in missing.items():
        what = f"octavo[{extra}]" if extra else "octavo"
        verdict = Verdict.WARN if extra else Verdict.FAIL
        yield Finding(
            "packages", verdict, f"without {', '.join(names)}", f"`pip install '{what}'` adds them"
        )


def java() -> Iterator[Finding]:
    """Whether Spark would find a Java that it can use."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    step = f"only Spark needs it: install Java {JAVA_MIN}, or set JAVA_HOME to one"
    if program is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        yield Finding("java", Verdict.WARN, f"no java in {where}", step)
        return
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            timeout=JAVA_TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("java", Verdict.WARN, f"{program} does not run: {error}", step)
        return
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        yield Finding("java", Verdict.WARN, f"{program} does not tell its version", step)
    elif int(found[1]) < JAVA_MIN:
        yield Finding("java", Verdict.WARN, f"{program} is Java {found[1]}", step)
    else:
        yield Finding("java", Verdict.OK, f"Java {found[1]} at {program}")


def open_files() -> Iterator[Finding]:
    """The limit that each connection and each open file of a server counts against."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        yield Finding(
            "open files",
            Verdict.WARN,
            f"the limit is {soft} (it may be raised to {hard})",
            f"`ulimit -n {OPEN_FILES_MIN}` before a server is started",
        )
    else:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"the limit is {soft}"
        yield Finding("open files", Verdict.OK, limit)


def proxies() -> Iterator[Finding]:
    """Proxies that other programs would use, and whether Octavo does."""
    names = [name for one in _PROXIES for name in (one, one.upper()) if os.environ.get(name)]
    used = os.environ.get(PROXY_VARIABLE, "false").strip().lower() == "true"
    if used:
        yield Finding(
            "proxies",
            Verdict.WARN,
            f"{PROXY_VARIABLE}=true: brokers are reached through {', '.join(names) or 'none'}",
            f"leave {PROXY_VARIABLE} out unless brokers are behind that proxy",
        )
    elif names:
        yield Finding("proxies", Verdict.OK, f"{', '.join(names)} set, not used for brokers")
    else:
        yield Finding("proxies", Verdict.OK, "none set")


def disk(data: pathlib.Path) -> Iterator[Finding]:
    """Space at the data folder, how fast a file is made durable there, and the clock meanwhile."""
    folder = next(path for path in (data, *data.parents) if path.is_dir())
    try:
        usage = shutil.disk_usage(folder)
        part = 1 - usage.free / usage.total if usage.total else 1.0
        space = f"{size_of(usage.free)} of {size_of(usage.total)} free at {folder}"
        if part >= DISK_WARN_RATIO:
            full = part >= DISK_FULL_RATIO
            yield Finding(
                "disk space",
                Verdict.FAIL if full else Verdict.WARN,
                space,
                f"make room: a bookie is read-only from {DISK_FULL_RATIO:.0%} on",
            )
        else:
            yield Finding("disk space", Verdict.OK, space)
        wall, steady = time.time(), time.monotonic()
        count, taken_s, worst_s = _syncs(folder)
        jump_s = (time.time() - wall) - (time.monotonic() - steady)
    except OSError as error:
        cause, hint = explained(error)
        yield Finding("disk", Verdict.FAIL, cause, hint)
        return
    rate = count / taken_s if taken_s else float(count)
    found = f"{rate:,.0f} syncs a second, the slowest took {worst_s * 1000:.1f} ms"
    if rate < SYNCS_PER_S_MIN:
        step = "records are acknowledged when they are synced: choose a faster disk for --data"
        yield Finding("disk syncs", Verdict.WARN, found, step)
    else:
        yield Finding("disk syncs", Verdict.OK, found)
    yield _clock(jump_s)


def _syncs(folder: pathlib.Path) -> tuple[int, float, float]:
    """Write and fdatasync a temporary file for a bounded time: how often, how long, the slowest."""
    worst_s, count = 0.0, 0
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.monotonic()
        while count < SYNCS_MAX and time.monotonic() - began < SYNC_TIME_MAX_S:
            before = time.monotonic()
            os.write(file.fileno(), bytes(SYNC_BYTES))
            os.fsync(file.fileno())
            worst_s = max(worst_s, time.monotonic() - before)
            count += 1
        return count, time.monotonic() - began, worst_s


def _clock(jump_s: float) -> Finding:
    step = "let one time service keep it (chrony, systemd-timesyncd): times of records come from it"
    year = time.gmtime().tm_year
    if year < OLDEST_YEAR:
        return Finding("clock", Verdict.FAIL, f"it says the year {year}", step)
    if abs(jump_s) > CLOCK_JUMP_S_MAX:
        found = f"it jumped by {jump_s:+.2f} s while the disk was measured"
        return Finding("clock", Verdict.WARN, found, step)
    return Finding("clock", Verdict.OK, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")


def ports(data: pathlib.Path) -> Iterator[Finding]:
    """What runs in the data folder; without a cluster there, whether its port is free."""
    try:
        found = read_cluster_file(data)
    except (OctavoError, OSError) as error:
        yield Finding("data folder", Verdict.FAIL, str(error), "look at cluster.json in it")
        return
    if found is not None and found.supervisor_alive():
        down = [entry.name for entry in found.children if entry.state == "down"]
        if down:
            step = f"`octavo logs {down[0]} --data {data}` shows why"
            yield Finding("processes", Verdict.FAIL, f"{', '.join(down)} down", step)
        else:
            names = ", ".join(entry.name for entry in found.children)
            yield Finding("processes", Verdict.OK, f"{names} run, data in {data}")
        return
    nobody = "no cluster was started in it" if found is None else "its cluster does not run"
    yield Finding("data folder", Verdict.OK, f"{data}: {nobody}")
    if is_free("127.0.0.1", DEFAULT_PORT):
        yield Finding("port", Verdict.OK, f"{DEFAULT_PORT} is free for `octavo up`")
    else:
        step = "stop that process, or start with another --port"
        by = listener(DEFAULT_PORT)
        yield Finding("port", Verdict.WARN, f"{DEFAULT_PORT} is taken{by}", step)


def cluster(bootstrap: str, timeout_s: float) -> Iterator[Finding]:
    """Name, connection, broker, metadata store and bookies; ends at the first that fails."""
    reached = False
    for address in bootstrap.split(","):
        ok = yield from _reach(address.strip(), timeout_s)
        reached = reached or ok
    if not reached:
        return
    try:
        with connected(bootstrap, timeout_s) as client:
            yield Finding("broker", Verdict.OK, f"one answers at {bootstrap}")
            found = client.admin.cluster_health(timeout=timeout_s)
    except OctavoError as error:
        step = error.hint or "something else than a broker may listen there"
        yield Finding("broker", Verdict.FAIL, error.cause, step, of_cluster=True)
        return
    if not found.metadata_connected:
        why = found.metadata_error or "brokers do not reach it"
        yield Finding(
            "metadata", Verdict.FAIL, why, "start the metadata store again", of_cluster=True
        )
    else:
        yield Finding("metadata", Verdict.OK, f"cluster {found.cluster_id}")
    writable, wanted = found.writable_bookies, found.write_quorum
    words = f"{writable} of {len(found.bookies)} take records, each goes to {wanted}"
    step = "`octavo status` and `octavo cluster health` show which are away or read-only"
    if writable < found.ack_quorum:
        yield Finding("bookies", Verdict.FAIL, words, step, of_cluster=True)
    elif writable < wanted:
        yield Finding("bookies", Verdict.WARN, words, step, of_cluster=True)
    else:
        yield Finding("bookies", Verdict.OK, words)


def _reach(address: str, timeout_s: float) -> Generator[Finding, None, bool]:
    """Resolve and connect to one address; whether something listens there."""
    try:
        host, port = split_address(address, what="bootstrap address")
    except OctavoError as error:
        yield Finding("address", Verdict.FAIL, error.cause, error.hint or "write host:port")
        return False
    found = _resolved(host, port, timeout_s)
    if isinstance(found, str):
        step = "check the spelling, /etc/hosts and the name server"
        yield Finding("name", Verdict.FAIL, f"{host}: {found}", step, of_cluster=True)
        return False
    refused = ""
    for place in found:
        try:
            with socket.create_connection((place, port), timeout_s):
                yield Finding("connection", Verdict.OK, f"{address} is {place}, something listens")
                return True
        except OSError as error:
            refused = f"{address} is {place}: {error.strerror or error}"
    step = "check the address and that `octavo up` or `octavo broker` is running"
    yield Finding("connection", Verdict.FAIL, refused, step, of_cluster=True)
    return False


def _resolved(host: str, port: int, timeout_s: float) -> list[str] | str:
    """Addresses of a name, or why there are none; a silent name server is not waited for."""
    found: list[list[str] | str] = []

    def look() -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.append(list(dict.fromkeys(str(info[4][0]) for info in infos)))
        except OSError as error:
            found.append(error.strerror or str(error))
        except UnicodeError as error:
            found.append(f"no name: {error}")

    thread = threading.Thread(target=look, name="octavo-doctor-name", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else f"no answer of the name server within {timeout_s:g} s"
