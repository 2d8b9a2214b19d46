"""The bare relay of the benchmark moves batches, and keeps a schedule, through real processes."""

from __future__ import annotations

from bench.relay import BareRelay


def test_the_relay_measures_throughput_and_latency() -> None:
    with BareRelay() as relay:
        rate = relay.measure(64 * 1024, 0.2)
        assert rate.batch_bytes == 64 * 1024
        assert rate.mb_per_s > 0
        paced = relay.measure_latency(1024, 500, 50, 20)
        assert 0 < paced.p50_ms <= paced.p99_ms <= paced.p999_ms <= paced.max_ms
