"""What one send may ask for besides being stored (F032, A5)."""

from __future__ import annotations

import pytest

from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.producing.terms import Terms, TermsTable
from octavo.runtime.errors import ConfigError

PLAIN = ProducerConfig(enable_idempotence=False)


def test_a_send_that_says_nothing_has_the_producers_terms() -> None:
    for acks, number in (("all", -1), ("1", 1), (0, 0)):
        table = TermsTable(ProducerConfig(acks=acks, enable_idempotence=False))
        assert table.default == Terms(number)
        assert table.of(None, None) is table.default
        assert table.of(acks, None) is table.default


def test_equal_terms_are_one_object() -> None:
    table = TermsTable(PLAIN)
    assert table.of(1, 2) is table.of("1", 2)
    assert table.of(1, 2) is not table.of(1, 3)
    assert table.of(None, 3) == Terms(-1, 3)


@pytest.mark.parametrize("acks", [0, 1, "all", -1])
def test_f032_acks_of_one_send_need_a_producer_without_idempotence(acks: object) -> None:
    for config in (ProducerConfig(), ProducerConfig(enable_idempotence=True)):
        with pytest.raises(ConfigError, match="all of them need acks='all'") as caught:
            TermsTable(config).of(acks, None)
        assert "enable_idempotence=False" in caught.value.hint
    TermsTable(ProducerConfig(acks=1)).of(acks, None)  # A5: off because of acks


def test_an_assertion_needs_no_more_than_an_answer() -> None:
    assert TermsTable(ProducerConfig()).of(None, 2) == Terms(-1, 2)
    with pytest.raises(ConfigError, match="acks=0"):
        TermsTable(ProducerConfig(acks=0)).of(None, 2)
    with pytest.raises(ConfigError, match="acks=0"):
        TermsTable(PLAIN).of(0, 2)


@pytest.mark.parametrize("acks", [2, -2, "2", "ALL", "", True, False, 1.0, b"1", [], {}])
def test_what_is_no_acks(acks: object) -> None:
    with pytest.raises(ConfigError, match="is not allowed"):
        TermsTable(PLAIN).of(acks, None)
    with pytest.raises(ConfigError, match="is not allowed"):
        ProducerConfig(acks=acks)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("copies", [0, -1, 65, True, 1.0, "2", b"2"])
def test_what_is_no_number_of_copies(copies: object) -> None:
    with pytest.raises(ConfigError, match="from 1 to 64"):
        TermsTable(PLAIN).of(None, copies)
