"""TCP faults through the real Toxiproxy server (spec faults R10, 4.2).

`ToxiproxyServer` runs the server as a child process (or uses the one of `TOXIPROXY_URL`); `Link` is
one proxied path with typed faults. It speaks through toxiproxy-python and adds what that client
lacks: time limits, updates, the errors of 5xx answers, and counters that prove a fault was on the
path.

What a test must know (4.2): the proxy accepts before it dials, so a dead upstream looks like
"connected, then closed"; `cut()` gives refusal. Toxicity is drawn per connection. `reset_peer`
resets only connections opened after it. Removing a `timeout` toxic closes the connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeVar, cast

import requests
from toxiproxy.api import APIConsumer, validate_response
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from octavo.runtime.errors import BrokerUnavailable, IllegalStateError, InvalidRequest

SERVER_NAME = "toxiproxy-server"
URL_VARIABLE = "TOXIPROXY_URL"
CALL_TIMEOUT_S = 5.0
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.02

ToxicType = Literal[
    "latency", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data"
]
Stream = Literal["upstream", "downstream"]
R = TypeVar("R")


class Toxic(NamedTuple):
    """One fault on a link, as the server has it."""

    name: str
    type: str
    stream: str
    toxicity: float
    attributes: dict[str, int]


class ToxiproxyMissing(IllegalStateError):
    """No Toxiproxy server is here."""

    code = "TOXIPROXY_MISSING"
    default_hint = "run `make setup` with Go installed, or set TOXIPROXY_URL to a running server"


class ToxiproxyError(IllegalStateError):
    """The Toxiproxy server refused or failed a request."""

    code = "TOXIPROXY"


def find_server() -> pathlib.Path | None:
    """The server binary: beside this Python, else on PATH."""
    beside = pathlib.Path(sys.executable).parent / SERVER_NAME
    if beside.exists():
        return beside
    found = shutil.which(SERVER_NAME)
    return pathlib.Path(found) if found else None


class ToxiproxyServer:
    """The server process of one test session and its API. Use as a context manager.

    toxiproxy-python keeps its address in a class variable: one server per process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ("127.0.0.1", 0)

    def start(self) -> None:
        """Start the server on a free port and wait until it answers. Raises ToxiproxyMissing."""
        url = os.environ.get(URL_VARIABLE)
        if url:
            parts = urllib.parse.urlsplit(url)
            self._address = (parts.hostname or "127.0.0.1", parts.port or 8474)
        else:
            self._address = ("127.0.0.1", _free_port())
            self._spawn(self._address[1])
        APIConsumer.host, APIConsumer.port = self._address
        if not wait_until(self._answers, START_TIMEOUT_S):
            self.stop()
            raise BrokerUnavailable(
                f"Toxiproxy does not answer at {self._address[0]}:{self._address[1]}", hint=""
            )
        self.reset()

    def _spawn(self, port: int) -> None:
        binary = find_server()
        if binary is None:
            raise ToxiproxyMissing
        self._process = subprocess.Popen(
            [str(binary), "-host", "127.0.0.1", "-port", str(port), "-proxy-metrics"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise ToxiproxyError(f"toxiproxy-server ended with code {self._process.returncode}")
        with socket.socket() as probe:
            probe.settimeout(CALL_TIMEOUT_S)
            return probe.connect_ex(self._address) == 0

    def stop(self) -> None:
        """End the server if this object started it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def version(self) -> str:
        """Version of the server."""
        reply = _call(lambda: APIConsumer.get("/version", timeout=CALL_TIMEOUT_S).content)
        text = reply.decode()
        return str(_fields(text)["version"]) if text.startswith("{") else text

    def reset(self) -> None:
        """Remove all toxics and enable all links."""
        _call(lambda: APIConsumer.post("/reset", timeout=CALL_TIMEOUT_S))

    def link(self, name: str, upstream: str, listen: str = "127.0.0.1:0") -> Link:
        """Create a proxy that listens and forwards to `upstream`; 0 takes a free port."""
        body = {"name": name, "upstream": upstream, "listen": listen, "enabled": True}
        made = _call(
            lambda: APIConsumer.post("/proxies", json=body, timeout=CALL_TIMEOUT_S).content
        )
        return Link(name, str(_fields(made.decode())["listen"]), upstream)

    def links(self) -> list[str]:
        """Names of the proxies that exist."""
        reply = _call(lambda: APIConsumer.get("/proxies", timeout=CALL_TIMEOUT_S).content)
        return sorted(_fields(reply.decode()))

    def remove(self, name: str) -> None:
        """Delete the proxy called `name`."""
        _call(lambda: APIConsumer.delete(f"/proxies/{name}", timeout=CALL_TIMEOUT_S))

    def received_bytes(self, link: Link) -> int:
        """Bytes of the ended connections of a link, both directions: proof of its use (R11)."""
        reply = _call(lambda: APIConsumer.get("/metrics", timeout=CALL_TIMEOUT_S).content)
        pattern = (
            rf'^toxiproxy_proxy_received_bytes_total{{.*proxy="{re.escape(link.name)}".*}} (.+)$'
        )
        return sum(int(float(m[1])) for m in re.finditer(pattern, reply.decode(), re.MULTILINE))


class Link:
    """One proxied path: clients use `listen`, bytes go to `upstream`."""

    def __init__(self, name: str, listen: str, upstream: str) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._patch("", {"enabled": False})

    def heal(self) -> None:
        """Accept connections again."""
        self._patch("", {"enabled": True})

    @contextlib.contextmanager
    def down(self) -> Generator[None]:
        """Cut for the length of a `with` block."""
        self.cut()
        try:
            yield
        finally:
            self.heal()

    def add(
        self,
        kind: ToxicType,
        *,
        stream: Stream = "downstream",
        toxicity: float = 1.0,
        name: str = "",
        **attributes: int,
    ) -> Toxic:
        """Put a toxic on the link; `timeout` with timeout=0 is a black hole."""
        body = {
            "name": name or f"{kind}_{stream}",
            "type": kind,
            "stream": stream,
            "toxicity": toxicity,
            "attributes": attributes,
        }
        made = _call(
            lambda: (
                APIConsumer.post(
                    f"/proxies/{self.name}/toxics", json=body, timeout=CALL_TIMEOUT_S
                ).content
            )
        )
        return _toxic(_fields(made.decode()))

    def update(self, toxic: Toxic, *, toxicity: float | None = None, **attributes: int) -> Toxic:
        """Change a toxic in place; established connections feel it at once."""
        body: dict[str, object] = {"attributes": attributes}
        if toxicity is not None:
            body["toxicity"] = toxicity
        return _toxic(_fields(self._patch(f"/toxics/{toxic.name}", body).decode()))

    def remove(self, toxic: Toxic) -> None:
        """Take a toxic off the link."""
        path = f"/proxies/{self.name}/toxics/{toxic.name}"
        _call(lambda: APIConsumer.delete(path, timeout=CALL_TIMEOUT_S))

    def toxics(self) -> list[Toxic]:
        """The toxics now on the link."""
        path = f"/proxies/{self.name}/toxics"
        reply = _call(lambda: APIConsumer.get(path, timeout=CALL_TIMEOUT_S).content)
        return [_toxic(raw) for raw in cast("list[dict[str, object]]", json.loads(reply))]

    def _patch(self, below: str, body: object) -> bytes:
        url = f"http://{APIConsumer.host}:{APIConsumer.port}/proxies/{self.name}{below}"

        def send() -> bytes:
            answer = requests.patch(url, json=body, timeout=CALL_TIMEOUT_S)
            validate_response(answer)
            if answer.status_code >= 500:
                raise ToxiproxyError(f"status {answer.status_code}: {answer.content.decode()}")
            return answer.content

        return _call(send)


def _call(send: Callable[[], R]) -> R:
    try:
        return send()
    except NotFound as error:
        raise ToxiproxyError(f"not found: {_said(error)}") from error
    except ProxyExists as error:
        raise ToxiproxyError(f"exists already: {_said(error)}") from error
    except InvalidToxic as error:
        raise InvalidRequest(f"Toxiproxy refused: {_said(error)}") from error
    except requests.RequestException as error:
        raise ToxiproxyError(f"no answer from the Toxiproxy server: {error}") from error


def _said(error: Exception) -> str:
    content: object = error.args[0] if error.args else ""
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)


def _fields(text: str) -> dict[str, object]:
    return cast("dict[str, object]", json.loads(text))


def _toxic(raw: dict[str, object]) -> Toxic:
    return Toxic(
        name=str(raw["name"]),
        type=str(raw["type"]),
        stream=str(raw["stream"]),
        toxicity=float(cast("float", raw["toxicity"])),
        attributes=cast("dict[str, int]", raw["attributes"]),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether `condition` came true within `timeout_s`; looked at every POLL_S."""
    tick = threading.Event()
    for _ in range(max(1, round(timeout_s / POLL_S))):
        if condition():
            return True
        tick.wait(POLL_S)
    return condition()
