"""The language of the scenarios: commands, and what each of them printed, in one text file.

    # A comment; blank lines part the steps.
    send b1 a b
    ----
    #1 stored at 0

The first line of a step is a command with its arguments, `name=value` among them; below the rule
stands everything that happened because of it. `--rewrite` writes what happened into the files, so
that a change of behaviour is read as a change of text. The form is that of data-driven tests in
Raft libraries: one handler per command, no code in the story.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

RULE = "----"
NOTHING = "(nothing)"


@dataclass(slots=True)
class Step:
    """One command of a story."""

    line: int
    """In its file, from 1."""
    comment: list[str]
    """Lines above the command, as they stand."""
    command: str
    args: list[str]
    options: dict[str, str]
    expected: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """The command line again."""
        options = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.command, *self.args, *options])

    def number(self, name: str, default: int) -> int:
        """An option that is a number."""
        return int(self.options.get(name, default))


Handler = Callable[[Step], Awaitable[None]]


class World(Protocol):
    """What a story happens in."""

    @property
    def handlers(self) -> dict[str, Handler]:
        """One per command."""
        ...

    async def happened(self) -> list[str]:
        """What happened since the last call, once nothing more happens by itself."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


def parse(text: str) -> list[Step]:
    """The steps of a story; raises ValueError for a line that is no part of one."""
    steps: list[Step] = []
    comment: list[str] = []
    expecting = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            expecting = False
            if comment:
                comment.append("")
        elif expecting:
            steps[-1].expected.append(line)
        elif line.startswith("#"):
            comment.append(line)
        elif line == RULE:
            if not steps or steps[-1].expected:
                raise ValueError(f"line {number}: a rule without a command above it")
            expecting = True
        else:
            words = line.split()
            args = [word for word in words[1:] if "=" not in word]
            options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            steps.append(Step(number, comment, words[0], args, options))
            comment = []
    return steps


def written(steps: list[Step]) -> str:
    """The story as a file."""
    parts: list[str] = []
    for step in steps:
        parts += [*step.comment, step.text, RULE, *(step.expected or [NOTHING]), ""]
    return "\n".join(parts)


async def play(name: str, steps: list[Step], world: World) -> list[str]:
    """Run a story; what differs from its text. The steps hold what happened afterwards."""
    differences: list[str] = []
    try:
        for step in steps:
            handler = world.handlers.get(step.command)
            if handler is None:
                raise ValueError(f"{name}:{step.line}: no command {step.command!r}")
            await handler(step)
            found = await world.happened() or [NOTHING]
            if found != step.expected:
                differences.append(
                    f"{name}:{step.line}: {step.text}\n  expected: {step.expected}\n"
                    f"  happened: {found}"
                )
            step.expected = found
    finally:
        await world.close()
    return differences


def tell(path: pathlib.Path, world: Callable[[], World], *, rewrite: bool) -> list[str]:
    """Run the story of a file; what differs, or nothing after `rewrite` changed the file."""
    steps = parse(path.read_text(encoding="utf-8"))

    async def told() -> list[str]:
        return await play(path.name, steps, world())

    differences = asyncio.run(told())
    if rewrite and differences:
        path.write_text(written(steps), encoding="utf-8")
        return []
    return differences
