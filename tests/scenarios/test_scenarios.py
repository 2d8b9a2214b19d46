"""Stories that prove a promise each: commands and what happened, in the files beside this one."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from tests.scenarios.language import Handler, Step, World, parse, tell, written
from tests.scenarios.partition_world import PartitionWorld
from tests.scenarios.quorum_world import QuorumWorld

HERE = pathlib.Path(__file__).resolve().parent
WORLDS: dict[str, Callable[[], World]] = {
    "partition": PartitionWorld,
    "quorum": QuorumWorld,
}
STORIES = sorted(HERE.glob("*/*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_story(path: pathlib.Path, request: pytest.FixtureRequest) -> None:
    rewrite = bool(request.config.getoption("--rewrite"))
    differences = tell(path, WORLDS[path.parent.name], rewrite=rewrite)
    assert not differences, "\n" + "\n".join(differences)


def test_every_story_is_told() -> None:
    assert {path.parent.name for path in STORIES} == WORLDS.keys()


def test_the_language_reads_what_it_writes() -> None:
    text = "# why\nsend b1 x y pid=7\n----\n#1 stored at 0\n\nclose b1\n----\n(nothing)\n"
    steps = parse(text)
    assert steps[0] == Step(
        2, ["# why"], "send", ["b1", "x", "y"], {"pid": "7"}, ["#1 stored at 0"]
    )
    assert written(steps) == text
    with pytest.raises(ValueError, match="line 1: a rule without a command"):
        parse("----\nx\n")


class _Echo:
    """Says its arguments."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.handlers: dict[str, Handler] = {"say": self._say}

    async def _say(self, step: Step) -> None:
        self.said += step.args

    async def happened(self) -> list[str]:
        said, self.said = self.said, []
        return said

    async def close(self) -> None: ...


def test_a_difference_is_told_and_rewritten(tmp_path: pathlib.Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text("# a\nsay hello\n----\nbye\n\nsay\n----\n(nothing)\n")
    (difference,) = tell(story, _Echo, rewrite=False)
    assert "story.txt:2: say hello" in difference
    assert "bye" in story.read_text()
    assert tell(story, _Echo, rewrite=True) == []
    assert story.read_text() == "# a\nsay hello\n----\nhello\n\nsay\n----\n(nothing)\n"
    assert tell(story, _Echo, rewrite=False) == []
    story.write_text("shout\n----\n")
    with pytest.raises(ValueError, match=r"story.txt:1: no command 'shout'"):
        tell(story, _Echo, rewrite=False)
