"""Addresses: what people write, what is refused, and by which words."""

from __future__ import annotations

import pytest

from octavo.runtime.address import bare_host, join_address, split_address
from octavo.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:7650", "localhost", 7650),
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("[::1]:7650", "::1", 7650),
        ("[fe80::1%eth0]:7650", "fe80::1%eth0", 7650),
        ("broker-1.example:65535", "broker-1.example", 65535),
    ],
)
def test_an_address_is_split_and_joined_again(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert join_address(host, port) == text
    assert join_address(f"[{host}]" if ":" in host else host, port) == text


@pytest.mark.parametrize(
    ("text", "host"),
    [("localhost", "localhost"), ("::1", "::1"), ("[::1]", "::1"), ("fe80::1%lo", "fe80::1%lo")],
)
def test_a_port_may_be_left_out_where_there_is_a_default(text: str, host: str) -> None:
    assert split_address(text, default_port=7650) == (host, 7650)
    with pytest.raises(ConfigError, match="thing"):
        split_address(text, what="thing")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":7650",
        "host:",
        "host:0",
        "host:65536",
        "host:-1",
        "host:seven",
        "host:\u0667",
        "a b:7650",
        "host/path:7650",
        "[::1",
        "[]:7650",
        "[::1]7650",
        "[::1]:x",
    ],
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="bootstrap server"):
        split_address(text, default_port=7650, what="bootstrap server")


@pytest.mark.parametrize("text", ["http://localhost:7650", "https://[::1]:7650", "octavo://h"])
def test_a_url_is_named_as_what_it_is(text: str) -> None:
    with pytest.raises(ConfigError, match="is a URL"):
        split_address(text, default_port=7650)


def test_bare_host() -> None:
    assert (bare_host("[::1]"), bare_host("::1"), bare_host("h")) == ("::1", "::1", "h")
