"""What the shell offers after a Tab: names of topics, asked of the cluster that the line names.

It must never disturb a prompt: the question is bounded in time and in number of names, and whatever
goes wrong, nothing is offered and nothing is said.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import cast

import typer

from octavo.cli.session import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP

COMPLETION_TIMEOUT_S = 1.0
NAMES_MAX = 500


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin so, sorted; [] when no broker answers in time."""
    given = cast("str | None", context.params.get("bootstrap"))
    bootstrap = given or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    logging.disable(logging.CRITICAL)  # "no broker answers yet" would land in the prompt
    names: list[str] = []
    with contextlib.suppress(Exception):
        # Imported here: the SDK loads gRPC, which no other completion pays for.
        from octavo.client.messaging import Client

        with Client(bootstrap) as client:
            client.connect(timeout=COMPLETION_TIMEOUT_S)
            found = client.admin.list_topics(timeout=COMPLETION_TIMEOUT_S)
            names = [topic.name for topic in found if topic.name.startswith(incomplete)]
    return names[:NAMES_MAX]
