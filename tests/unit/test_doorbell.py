"""The wake-up of the bookie's commit thread: no ring is lost, and several count as one."""

from __future__ import annotations

import threading

from octavo.runtime.doorbell import Doorbell

DEADLINE_S = 30.0


def test_a_ring_before_the_wait_is_kept() -> None:
    bell = Doorbell()
    bell.ring()
    assert bell.wait(DEADLINE_S)


def test_rings_that_nobody_heard_are_one() -> None:
    bell = Doorbell()
    bell.ring()
    bell.ring()
    assert bell.wait(None)
    assert not bell.wait(0.0)


def test_a_wait_ends_when_its_time_is_over() -> None:
    assert not Doorbell().wait(0.0)


def test_a_ring_wakes_the_thread_that_sleeps() -> None:
    bell, heard = Doorbell(), threading.Event()

    def sleep() -> None:
        if bell.wait(DEADLINE_S):
            heard.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    bell.ring()
    assert heard.wait(DEADLINE_S)
    thread.join()
