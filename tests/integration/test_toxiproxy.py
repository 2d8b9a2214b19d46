"""The wrapper over the real Toxiproxy server: every fault of 4.2 that we use does what we say."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from octavo.chaos.toxiproxy import Link, ToxiproxyError, ToxiproxyServer, wait_until
from octavo.runtime.errors import InvalidRequest

pytestmark = pytest.mark.toxiproxy


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(4096):
                self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[str]:
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def link(toxiproxy: ToxiproxyServer, echo: str) -> Link:
    return toxiproxy.link("echo", echo)


def connect(link: Link, timeout_s: float = 5.0) -> socket.socket:
    host, _, port = link.listen.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def test_bytes_pass_and_are_counted(toxiproxy: ToxiproxyServer, link: Link) -> None:
    with connect(link) as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
    assert wait_until(lambda: toxiproxy.received_bytes(link) >= 10, 30.0)


def test_the_server_names_its_version(toxiproxy: ToxiproxyServer) -> None:
    assert toxiproxy.version()


def test_cut_closes_and_refuses_until_healed(link: Link) -> None:
    with connect(link) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        with link.down():
            assert client.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                connect(link)
    with connect(link) as client:
        client.sendall(b"y")
        assert client.recv(1) == b"y"


def test_black_hole_is_silent(link: Link) -> None:
    toxic = link.add("timeout", timeout=0)
    with connect(link, timeout_s=0.3) as client:
        client.sendall(b"x")
        with pytest.raises(TimeoutError):
            client.recv(1)
    link.remove(toxic)
    assert link.toxics() == []


def test_update_changes_an_established_connection(link: Link) -> None:
    toxic = link.add("latency", latency=60_000, jitter=0)
    changed = link.update(toxic, latency=1)
    assert changed.attributes["latency"] == 1
    assert [t.attributes["latency"] for t in link.toxics()] == [1]
    with connect(link) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"


def test_errors_are_typed(toxiproxy: ToxiproxyServer, link: Link) -> None:
    toxic = link.add("latency", latency=1)
    with pytest.raises(ToxiproxyError, match="exists"):
        toxiproxy.link("echo", "127.0.0.1:1")
    link.remove(toxic)
    with pytest.raises(ToxiproxyError, match="not found"):
        link.remove(toxic)
    with pytest.raises(InvalidRequest):
        link.add("latency", toxicity=7.0, name="far too toxic", latency=-1, stream="sideways")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_reset_takes_everything_off(toxiproxy: ToxiproxyServer, link: Link) -> None:
    link.add("latency", latency=1)
    link.cut()
    toxiproxy.reset()
    assert link.toxics() == []
    with connect(link) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
