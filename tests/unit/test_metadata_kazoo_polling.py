"""kazoo's waits by `poll` answer as its own do."""

from __future__ import annotations

import socket

import pytest

from octavo.metadata.kazoo_polling import PollHandler


def test_what_can_be_read_and_written_is_told() -> None:
    handler = PollHandler()
    one, other = socket.socketpair()
    with one, other:
        assert handler.select([one], [], [], 0) == ([], [], [])
        assert handler.select([], [one], [], 0) == ([], [one], [])
        other.send(b"x")
        assert handler.select([one], [], [], 5) == ([one], [], [])
        one.recv(1)
        other.close()
        assert handler.select([one], [], [], 5) == ([one], [], [])  # its end


def test_a_wait_ends_in_time_and_a_closed_socket_is_refused() -> None:
    handler = PollHandler()
    one, other = socket.socketpair()
    with other:
        assert handler.select([one], [], [], 0.01) == ([], [], [])
        one.close()
        with pytest.raises((TypeError, ValueError)):
            handler.select([one], [], [], 0.01)


def test_descriptors_above_1024_are_waited_for() -> None:
    import fcntl
    import os
    import resource

    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1_200:
        pytest.skip("this shell may not open so many files")
    one, other = socket.socketpair()
    with one, other:
        high = fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 1_100)
        try:
            other.send(b"x")
            assert PollHandler().select([high], [], [], 5) == ([high], [], [])
        finally:
            os.close(high)
