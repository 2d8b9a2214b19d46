"""Stories that prove a promise each: commands and what happened, in the files beside this one."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from octavo.runtime.errors import NotLeader
from tests.scenarios.consumer_world import ConsumerWorld
from tests.scenarios.judged import Deed, JudgedWorld
from tests.scenarios.language import Handler, Step, World, parse, tell, written
from tests.scenarios.ledger_world import LedgerWorld
from tests.scenarios.partition_world import PartitionWorld
from tests.scenarios.quorum_world import QuorumWorld

HERE = pathlib.Path(__file__).resolve().parent
WORLDS: dict[str, Callable[[], World]] = {
    "consumer": ConsumerWorld,
    "ledger": LedgerWorld,
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


class _Counter(JudgedWorld):
    """A number that promises to stay below ten."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0

    def deeds(self) -> dict[str, Deed]:
        return {"add": self._add, "refuse": self._refuse}

    async def _add(self, step: Step) -> list[str]:
        self.value += sum(int(word) for word in step.args)
        return [f"value {self.value}"]

    async def _refuse(self, _step: Step) -> list[str]:
        raise NotLeader("not here")

    async def judge(self) -> None:
        assert self.value < 10, "a broken promise"

    async def close(self) -> None: ...


def test_a_broken_promise_fails_whatever_the_story_says(tmp_path: pathlib.Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text("add 4\n----\nvalue 4\n\nrefuse\n----\nerror NOT_LEADER\n")
    assert tell(story, _Counter, rewrite=False) == []
    story.write_text("add 4\n----\nvalue 4\n\nadd 6\n----\nvalue 10\n")
    for rewrite in (False, True):
        with pytest.raises(AssertionError, match="a broken promise"):
            tell(story, _Counter, rewrite=rewrite)
