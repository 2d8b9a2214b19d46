"""What the shell offers after a Tab: names of topics and groups, asked of the cluster of the line.

It must never disturb a prompt: the question is bounded in time and in number of names, and whatever
goes wrong, nothing is offered and nothing is said.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

import typer

from octavo.cli.session import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from octavo.client.messaging import Client

COMPLETION_TIMEOUT_S = 1.0
NAMES_MAX = 500


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin so, sorted; [] when no broker answers in time."""
    return _names(
        context,
        incomplete,
        lambda client: (
            topic.name for topic in client.admin.list_topics(timeout=COMPLETION_TIMEOUT_S)
        ),
    )


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """The same of consumer groups."""
    return _names(
        context,
        incomplete,
        lambda client: (
            group.group_id for group in client.admin.list_groups(timeout=COMPLETION_TIMEOUT_S)
        ),
    )


def _names(
    context: typer.Context, incomplete: str, ask: Callable[[Client], Iterable[str]]
) -> list[str]:
    given = cast("str | None", context.params.get("bootstrap"))
    bootstrap = given or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    logging.disable(logging.CRITICAL)  # "no broker answers yet" would land in the prompt
    names: list[str] = []
    with contextlib.suppress(Exception):
        # Imported here: the SDK loads gRPC, which no other completion pays for.
        from octavo.client.messaging import Client

        with Client(bootstrap) as client:
            client.connect(timeout=COMPLETION_TIMEOUT_S)
            names = [name for name in ask(client) if name.startswith(incomplete)]
    return names[:NAMES_MAX]
