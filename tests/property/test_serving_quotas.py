"""Rates of clients: a bucket lets through its rate, a burst and one debt (X24, S19)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.metadata.quotas import QuotaLimits
from octavo.runtime.errors import Throttled, TooManyConnections
from octavo.serving.quotas.buckets import BURST_S, DEBT_MAX_S, OWED_MIN_S, TokenBucket
from octavo.serving.quotas.clients import (
    ANSWER_S,
    IDLE_CLIENTS_MAX,
    PAUSE_MAX_S,
    REQUESTS_OWED_MAX_S,
    WITHIN,
    ClientQuotas,
    ClientUse,
)

rates = st.integers(1_000, 100_000_000)
sizes = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=100)


def passed(make: Callable[[int, float], TokenBucket], rate: int, amounts: list[int]) -> str:
    """What is wrong with a bucket whose user pauses as it is told; empty: nothing."""
    now_s = 1000.0
    bucket = make(rate, now_s)
    taken, largest = 0, max(amounts)
    for amount in amounts:
        taken += amount
        wait_s = bucket.take(amount, now_s)
        waited_s = now_s - 1000.0
        now_s += wait_s
        if bucket.owed_s(now_s) > 1e-6:
            return "it owes after the pause that it asked for"
        allowed = rate * (BURST_S + OWED_MIN_S + now_s - 1000.0)
        debt_forgiven = largest > rate * DEBT_MAX_S
        if not debt_forgiven and taken > allowed * (1 + 1e-6) + 1:
            return f"{taken} of {allowed}"
        if wait_s > max(0.0, taken / rate - BURST_S - waited_s) + 1e-6:
            return "it asked for a longer pause than the rate needs"
    return ""


@given(rates, sizes)
@example(1_000, [1 << 20] * 3)
def test_x24_who_pauses_as_told_gets_the_rate_and_no_more(rate: int, amounts: list[int]) -> None:
    assert passed(TokenBucket, rate, amounts) == ""


class Forgetful(TokenBucket):
    """Planted: a debt is forgotten."""

    def take(self, amount: int, now_s: float) -> float:
        wait_s = super().take(amount, now_s)
        self._left = max(self._left, 0.0)
        return wait_s if wait_s < 0.5 else 0.5


class Hoarding(TokenBucket):
    """Planted: what is not used is saved up for ever."""

    def _refill(self, now_s: float) -> None:
        self._left += 2 * (now_s - self._at_s) * self.rate
        self._at_s = now_s


class Slow(TokenBucket):
    """Planted: twice the pause that is needed."""

    def take(self, amount: int, now_s: float) -> float:
        return 2 * super().take(amount, now_s)


@pytest.mark.parametrize("planted", [Forgetful, Hoarding, Slow])
def test_planted_faults_of_buckets_are_found(planted: type[TokenBucket]) -> None:
    assert passed(planted, 1_000_000, [1 << 20] * 100) != ""


def test_x24_one_mb_per_s_holds_within_ten_percent_over_30_virtual_seconds() -> None:
    """Counted bytes against a clock that only the pauses move."""
    now_s, sent, quotas = 0.0, 0, ClientQuotas(QuotaLimits(1_000_000))
    use = quotas.opened("app", "c1", now_s)
    while now_s < 30.0:
        sent += 256 * 1024
        now_s += use.received(256 * 1024, now_s).pause_s
    assert 0.9 * 30_000_000 <= sent <= 1.1 * 30_000_000
    assert quotas.throttled["bytes_in"] > 100


@settings(max_examples=40)
@given(
    st.lists(st.integers(1_000, 1 << 20), min_size=2, max_size=12),
    st.integers(200_000, 5_000_000),
)
def test_x24_streams_of_one_client_share_its_rate(messages: list[int], rate: int) -> None:
    """Each stream sends messages of its size, pauses as told, and is refused while it owes then."""
    quotas = ClientQuotas(QuotaLimits(bytes_in_per_s=rate))
    now_s, taken = 0.0, 0
    due: list[tuple[float, int, ClientUse, int]] = []
    for number, size in enumerate(messages):
        due.append((0.0, number, quotas.opened("app", f"c{number}", 0.0), size))
    while now_s < 20.0:
        due.sort(key=lambda one: one[:2])
        now_s, number, use, size = due.pop(0)
        owed = use.owed_in(now_s)
        if owed.seconds:
            refusal = use.refusal(owed)
            assert 0 < int(refusal.details["throttle_ms"]) <= PAUSE_MAX_S * 1000
            due.append((now_s + owed.pause_s, number, use, size))
            continue
        taken += size
        excess = use.received(size, now_s)
        due.append((now_s + max(excess.pause_s, 0.05), number, use, size))
    assert taken <= rate * (now_s + BURST_S + OWED_MIN_S) + sum(messages)


def test_x24_requests_and_bytes_count_and_the_longer_pause_is_told() -> None:
    quotas = ClientQuotas(QuotaLimits(bytes_in_per_s=1_000_000, requests_per_s=10))
    use = quotas.opened("app", "c1", 0.0)
    for _ in range(10):
        assert use.received(10, 0.0).pause_ms == 0
    excess = use.received(10, 0.0)
    assert (excess.quota, excess.pause_ms) == ("requests", 100)
    excess = use.received(5_000_000, 0.0)
    assert excess.quota == "bytes_in"
    assert math.isclose(excess.seconds, 4.0, rel_tol=1e-3)
    for _ in range(20):
        use.sends(1, 0.0)
    assert use.owed_out(0.0).quota == "requests"  # what it reads is another matter, messages count
    assert math.isclose(use.owed_out(0.0).seconds, 2.2 - REQUESTS_OWED_MAX_S)
    assert isinstance(use.refusal(excess), Throttled)
    assert use.refusal(excess).details["quota"] == "bytes_in"


def test_x24_calls_count_with_the_streams_and_are_refused_when_too_much_is_owed() -> None:
    quotas = ClientQuotas(QuotaLimits(requests_per_s=10))
    assert [quotas.asked("app", 0.0).pause_ms for _ in range(12)] == [*[0] * 10, 100, 200]
    assert quotas.opened("app", "c1", 0.0).received(1, 0.0).pause_ms == 300
    told = [quotas.asked("app", 0.0).pause_ms for _ in range(18)]
    assert told[-1] == REQUESTS_OWED_MAX_S * 1000 + 100
    for _ in range(3):  # what is refused does not count
        with pytest.raises(Throttled) as caught:
            quotas.asked("app", 0.0)
        assert caught.value.details["quota"] == "requests"
        assert caught.value.details["throttle_ms"] in (100, 101)  # of a sum of tenths
    assert quotas.opened("app", "c1", 0.0).owed_in(0.0).pause_ms in (100, 101)
    assert quotas.asked("other", 0.0).pause_ms == 0
    assert quotas.asked("app", 2.1).pause_ms == 100
    assert quotas.throttled["requests"] == 25


def test_x24_calls_of_clients_without_a_quota_leave_no_trace_and_others_are_bounded() -> None:
    quotas = ClientQuotas(QuotaLimits(bytes_in_per_s=1))
    for number in range(20):
        assert quotas.asked(f"client-{number}", 0.0) is WITHIN
    assert not quotas._idle  # pyright: ignore[reportPrivateUsage]
    quotas = ClientQuotas(QuotaLimits(requests_per_s=1))
    for client_id in ("app", "app", *(f"client-{n}" for n in range(IDLE_CLIENTS_MAX - 1)), "app"):
        quotas.asked(client_id, 0.0)
    quotas.asked("new", 0.0)
    assert len(quotas._idle) == IDLE_CLIENTS_MAX  # pyright: ignore[reportPrivateUsage]
    assert quotas.asked("app", 0.0).pause_ms == 3_000, "it asked of late, so it is remembered"
    assert quotas.asked("client-0", 0.0).pause_ms == 0


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 12), st.integers(0, 1 << 16))
def test_x24_callers_that_pause_as_told_get_the_rate_beside_a_stream(
    rate: int, callers: int, seed: int
) -> None:
    """None keeps the others away: the refused come again before those that had their turn."""
    quotas, rng = ClientQuotas(QuotaLimits(requests_per_s=rate)), random.Random(seed)
    use = quotas.opened("app", "c1", 0.0)
    now_s, done = 0.0, [0] * (callers + 1)
    due = [(0.0, number) for number in range(callers + 1)]
    while now_s < 60.0:
        due.sort()
        now_s, number = due.pop(0)
        if number == callers:  # the stream
            owed = use.owed_in(now_s)
            if not owed.seconds:
                done[number] += 1
                owed = use.received(1, now_s)
            due.append((now_s + max(owed.pause_s, 0.001) + rng.uniform(0.0, 0.02), number))
            continue
        try:
            excess = quotas.asked("app", now_s)
        except Throttled as refused:
            pause_ms = int(refused.details["throttle_ms"])
        else:
            done[number] += 1
            pause_ms = max(excess.pause_ms, 1)
        due.append((now_s + pause_ms / 1000 + rng.uniform(0.0, 0.02), number))
    assert sum(done) <= rate * (now_s + BURST_S + REQUESTS_OWED_MAX_S) + 1
    assert sum(done) >= 0.9 * rate * now_s
    assert all(done)


def test_x24_what_a_client_has_of_its_own_counts_before_the_default() -> None:
    quotas = ClientQuotas(QuotaLimits(1000, 2000, 0, 1))
    use = quotas.opened("app", "c1", 0.0)
    quotas.adopt({"app": QuotaLimits(bytes_in_per_s=0, connections_max=2)}, 1.0)
    assert quotas.limits_of("app") == QuotaLimits(0, 2000, 0, 2)
    assert quotas.limits_of("other") == QuotaLimits(1000, 2000, 0, 1)
    assert use.received(1 << 30, 1.0).seconds == 0
    assert use.sends(1 << 20, 1.0).pause_s == PAUSE_MAX_S  # told in pieces, owed to the end
    assert use.owed_out(1.0 + DEBT_MAX_S).seconds == 0
    quotas.adopt({}, 2.0)
    assert use.received(10_000, 2.0).seconds > 0


def test_x24_a_debt_keeps_its_length_when_the_rate_changes() -> None:
    bucket = TokenBucket(1_000, 0.0)
    assert bucket.take(11_000, 0.0) == 10.0
    bucket.adopt(1_000_000, 0.0)
    assert math.isclose(bucket.owed_s(4.0), 6.0)


def test_x24_connections_are_counted_and_streams_on_one_are_not() -> None:
    quotas = ClientQuotas(QuotaLimits(connections_max=2))
    first = quotas.opened("app", "c1", 0.0)
    assert quotas.opened("app", "c1", 0.0) is first
    quotas.opened("app", "c2", 0.0)
    quotas.opened("other", "c3", 0.0)
    with pytest.raises(TooManyConnections, match="its quota is 2") as caught:
        quotas.opened("app", "c4", 0.0)
    assert "octavo quotas set" in caught.value.hint
    assert quotas.throttled["connections"] == 1
    quotas.closed(first, "c1")
    with pytest.raises(TooManyConnections):
        quotas.opened("app", "c4", 0.0)
    quotas.closed(first, "c1")
    quotas.opened("app", "c4", 0.0)


def test_x24_a_debt_survives_a_new_connection_and_the_idle_are_bounded() -> None:
    quotas = ClientQuotas(QuotaLimits(bytes_in_per_s=1_000))

    def visit(client_id: str) -> ClientUse:
        use = quotas.opened(client_id, "c1", 0.0)
        use.received(5_000, 0.0)
        quotas.closed(use, "c1")
        return use

    visit("app")
    assert quotas.opened("app", "c2", 0.0).owed_in(0.0).seconds == 4.0
    for number in range(IDLE_CLIENTS_MAX + 1):
        visit(f"client-{number}")
    assert quotas.opened("client-0", "c1", 0.0).owed_in(0.0).seconds == 0  # forgotten, the oldest
    assert quotas.opened("client-1", "c1", 0.0).owed_in(0.0).seconds == 4.0
    assert quotas.opened("app", "c3", 0.0).owed_in(0.0).seconds == 4.0  # it is not idle


@given(st.one_of(st.none(), rates), st.integers(1, 1 << 24))
def test_x24_an_answer_is_no_larger_than_half_a_second_of_the_quota(
    rate: int | None, most_bytes: int
) -> None:
    use = ClientQuotas(QuotaLimits(bytes_out_per_s=rate)).opened("one", "peer", 0.0)
    allowed = use.answer_bytes(most_bytes)
    assert 1 <= allowed <= most_bytes
    assert allowed == most_bytes if rate is None else allowed in {most_bytes, int(rate * ANSWER_S)}
    assert WITHIN.seconds == 0 == use.owed_out(0.0).seconds  # to ask costs nothing
