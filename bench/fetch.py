"""Brings the peers here, by package name, through the ordinary package clients. Nothing else does.

Everything lands in the virtual environment (`.venv/peers`, `.venv/bin`), so `make clean` removes
it; Debian packages are the exception. What cannot be had raises Unavailable with one line.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from xml.sax.saxutils import escape

from bench.systems import Unavailable

VENV_BIN = pathlib.Path(sys.executable).parent
PEERS = VENV_BIN.parent / "peers"
GO_FOLDERS = "/usr/local/go/bin:/usr/lib/go/bin"
JAVA_MIN = 17
FETCH_TIMEOUT_S = 900

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>octavo.bench</groupId><artifactId>peer</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>"
    "</dependency>"
)


def _run(command: Sequence[str], what: str, **env: str) -> None:
    print(f"bench: fetching {what}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            env={**os.environ, **env},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: not fetched within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise Unavailable(f"{what} could not be fetched: {_reason(said)}")


def _reason(lines: Sequence[str]) -> str:
    errors = [line for line in lines if re.match(r"\[ERROR\]|E: |error|ERROR", line)]
    return ((errors or list(lines) or ["no output"])[0])[:200]


def java() -> str:
    """Path of a Java 17 or newer."""
    found = shutil.which("java")
    if found is None:
        raise Unavailable("no java on PATH: install a Java 17 runtime (`make setup` tries)")
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if match is None or int(match.group(1)) < JAVA_MIN:
        raise Unavailable(f"java on PATH is too old: version {JAVA_MIN} or newer is needed")
    return found


def jars(name: str, artifacts: Sequence[tuple[str, str, str]]) -> str:
    """Class path of Maven artifacts (group, artifact, version) with all they need at run time."""
    folder = PEERS / f"{name}-{artifacts[0][2]}"
    if not folder.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise Unavailable(f"no mvn on PATH to fetch {name}: install Maven (Debian: maven)")
        PEERS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PEERS) as work:
            pom = pathlib.Path(work) / "pom.xml"
            dependencies = "".join(_DEPENDENCY.format(*map(escape, each)) for each in artifacts)
            pom.write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
            lib = pathlib.Path(work) / "lib"
            command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
            _run(
                [*command, f"-DoutputDirectory={lib}", "-DincludeScope=runtime"],
                f"{artifacts[0][1]} {artifacts[0][2]} (Maven)",
            )
            lib.rename(folder)
    return f"{folder}/*"


def go_program(name: str, package: str) -> str:
    """Path of a Go program, built once by `go install package@version`."""
    target = VENV_BIN / name
    if not target.exists():
        go = shutil.which("go") or shutil.which("go", path=GO_FOLDERS)
        if go is None:
            raise Unavailable(f"no go on PATH to build {name}: install Go 1.25 or newer")
        _run([go, "install", package], f"{package} (Go)", GOBIN=str(VENV_BIN))
    return str(target)


def debian_program(name: str, package: str) -> str:
    """Path of a program from a Debian package; installed when this is root on Debian."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise Unavailable(f"no {name} on PATH: install it (Debian: apt-get install {package})")
        _run(["apt-get", "update", "-qq"], "package lists (Debian)")
        _run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
            f"{package} (Debian)",
            DEBIAN_FRONTEND="noninteractive",
            RUNLEVEL="1",  # install, but start no service
        )
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if found is None:
            raise Unavailable(f"{package} was installed, but {name} is not on PATH")
    return found


def need_package(module: str, package: str) -> None:
    """A Python client must be importable."""
    if importlib.util.find_spec(module) is None:
        raise Unavailable(f"Python package {package} is missing: pip install -e '.[bench]'")
