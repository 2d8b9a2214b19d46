"""docs/reference/ says what the code says, and every setting says what it means."""

from __future__ import annotations

import pytest

from octavo.bookie.config import BookieConfig
from octavo.client.messaging import config as client_config
from octavo.serving.config import BrokerConfig
from tools import gen_reference


@pytest.mark.parametrize("name", sorted(gen_reference.PAGES))
def test_a_page_is_what_the_code_says(name: str) -> None:
    committed = (gen_reference.FOLDER / name).read_text(encoding="utf-8")
    assert committed == gen_reference.PAGES[name](), "run `make reference`"


def test_every_setting_has_a_meaning() -> None:
    rows = [*gen_reference.server_rows(BookieConfig), *gen_reference.server_rows(BrokerConfig)]
    for cls in (
        client_config.ClientConfig,
        client_config.ProducerConfig,
        client_config.ConsumerConfig,
    ):
        rows += gen_reference.client_rows(cls)
    assert [row.name for row in rows if not row.meaning] == []


def test_ranges_come_from_the_checks() -> None:
    rows = {row.name: row for row in gen_reference.client_rows(client_config.ProducerConfig)}
    assert rows["linger_ms"].allowed == "≥ 0, ≤ 3,600,000"
    assert rows["max_request_size"].default == "1 MiB"
    servers = {row.name: row for row in gen_reference.server_rows(BookieConfig)}
    assert servers["disk_warn_ratio"].allowed == "> 0, ≤ 1"
    assert servers["bookie_id"].default == "must be given"


def test_every_error_is_listed_once() -> None:
    page = gen_reference.errors_page()
    for cls in gen_reference.public_errors():
        assert page.count(f"`{cls.__name__}` |") == 1
