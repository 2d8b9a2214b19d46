"""How many connections a broker takes, by its setting and by the limit of open files."""

from __future__ import annotations

import subprocess
import sys

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from octavo.proto.errors import from_rpc_error
from octavo.runtime.descriptors import descriptor_limit
from octavo.runtime.errors import BrokerUnavailable, ConfigError
from octavo.serving.connections import (
    CONNECTIONS_MIN,
    DESCRIPTORS_RESERVED,
    connections_allowed,
)


def test_the_setting_counts_while_there_is_room_for_everything_else() -> None:
    assert connections_allowed(1_000, 1_000 + DESCRIPTORS_RESERVED) == 1_000
    assert connections_allowed(10, 20_000) == 10


def test_a_low_limit_leaves_room_for_what_is_no_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert connections_allowed(1_000, 1_000 + DESCRIPTORS_RESERVED - 1) == 999
    said = caplog.text
    assert said.count("open-files-limit-is-low") == 1
    assert "ulimit -n 1256" in said


def test_too_few_descriptors_for_any_work_are_an_error_that_says_how_many() -> None:
    least = CONNECTIONS_MIN + DESCRIPTORS_RESERVED
    assert connections_allowed(10_000, least) == CONNECTIONS_MIN
    with pytest.raises(ConfigError, match=f"may open {least - 1} files") as caught:
        connections_allowed(10_000, least - 1)
    assert "ulimit -n 10256" in caught.value.hint


def test_a_server_may_open_as_many_files_as_its_hard_limit_allows() -> None:
    code = (
        "import resource; from octavo.runtime.descriptors import *\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 700))\n"
        "before = descriptor_limit(); raise_descriptor_limit()\n"
        "print(before, descriptor_limit())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout.split() == ["100", "700"]
    assert descriptor_limit() > 0


@pytest.mark.parametrize(
    ("details", "cause", "hint"),
    [
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:1.2.3.4:5: "
            "Socket closed",
            "Socket closed",
            "connections_max",
        ),
        (
            "failed to connect to all addresses; last error: INTERNAL: socket: "
            "Too many open files\n\x00\xf3",
            "Too many open files",
            "ulimit -n",
        ),
        ("failed to connect to all addresses; Connection refused", "refused", "octavo up"),
        ("Socket closed", "Socket closed", "octavo up"),
    ],
)
def test_a_connection_that_cannot_be_made_says_what_to_do(
    details: str, cause: str, hint: str
) -> None:
    error = from_rpc_error(
        AioRpcError(StatusCode.UNAVAILABLE, Metadata(), Metadata(), details), "b:1"
    )
    assert isinstance(error, BrokerUnavailable)
    assert error.cause.endswith(cause)
    assert hint in error.hint


def test_a_request_that_no_broker_began_says_why_that_may_be() -> None:
    error = from_rpc_error(
        AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata(), "CANCELLED"), "b:1"
    )
    assert isinstance(error, BrokerUnavailable)
    assert "more requests than it can begin" in error.hint
