"""docs/kafka-users.md line by line: every name on our side exists, and every block of code runs."""

from __future__ import annotations

import dataclasses
import re
import shlex

import click
import pytest
import typer

import octavo
from octavo import errors
from octavo.cli.app import app
from octavo.client import messaging
from octavo.client.messaging.config import (
    ClientConfig,
    ConsumerConfig,
    GroupConfig,
    ProducerConfig,
)
from octavo.serving.config import BrokerConfig
from octavo.serving.topic_config import TOPIC_CONFIG_KEYS
from tests.group_cluster import GroupCluster
from tests.tidy_rules import ROOT

PAGE = (ROOT / "docs" / "kafka-users.md").read_text(encoding="utf-8")
SETTINGS = {
    field.name
    for settings in (ClientConfig, ConsumerConfig, GroupConfig, ProducerConfig)
    for field in dataclasses.fields(settings)
}
SERVER_SETTINGS = {*TOPIC_CONFIG_KEYS, *BrokerConfig.model_fields}


def names_in(section: str) -> list[str]:
    """What stands between backquotes in the Octavo column of a section's table."""
    text = PAGE[PAGE.index(f"## {section}\n") :]
    rows = re.findall(r"^\| (?!---|Kafka)(.*) \|$", text[: text.index("\n## ", 5)], re.MULTILINE)
    assert len(rows) > 15
    return [name for row in rows for name in re.findall("`([^`]+)`", row.split(" | ")[1])]


@pytest.mark.parametrize("name", names_in("Classes and calls"))
def test_a_class_has_that_call_in_both_flavours(name: str) -> None:
    home, _, call = name.partition(".")
    for flavour in (home, f"Async{home}"):
        found = getattr(octavo, flavour, None) or getattr(messaging, flavour)
        wanted = "__aiter__" if call == "__iter__" and flavour != home else call
        assert hasattr(found, wanted), f"{flavour}.{wanted}"


@pytest.mark.parametrize("name", names_in("Settings"))
def test_a_setting_is_a_field(name: str) -> None:
    assert name in SETTINGS | SERVER_SETTINGS or name == "Client(bootstrap_servers)"


@pytest.mark.parametrize("line", names_in("Commands"))
def test_a_command_line_is_understood(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "octavo"
    command: object = typer.main.get_command(app)
    context = click.Context(command)  # type: ignore[arg-type]
    while words and (found := getattr(command, "commands", {}).get(words[0])) is not None:
        command = found
        context = click.Context(found, parent=context)
        words.pop(0)
    command.make_context(line, words)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", names_in("Errors"))
def test_an_error_is_a_class_with_a_code(name: str) -> None:
    found = getattr(errors, name)
    assert issubclass(found, errors.OctavoError)
    assert re.fullmatch("[A-Z_]+", found.code)


def test_a_name_that_is_wrong_is_found() -> None:
    """So that the tests above can fail."""
    with pytest.raises(AttributeError):
        test_a_class_has_that_call_in_both_flavours("KafkaConsumer.poll")
    with pytest.raises(AssertionError):
        test_a_setting_is_a_field("group_protocol")
    with pytest.raises(Exception, match=r"No such (command|option)|unexpected"):
        test_a_command_line_is_understood("octavo group lag g --weekly")


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    found = GroupCluster()
    try:
        for block in blocks:
            exec(block.replace("localhost:7650", found.bootstrap), {"__name__": "__page__"})
    finally:
        found.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0 0.0"
    assert lines[-1] == "0"
    assert len(lines) == 8, "six partitions before and after"
