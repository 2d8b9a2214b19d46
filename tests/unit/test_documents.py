"""The documents list what is there: rooms, decisions."""

from __future__ import annotations

import pathlib
import re

from tests.tidy_rules import FOLDERS, ROOT


def rooms() -> list[pathlib.PurePosixPath]:
    """Folders that hold code, relative to the repository."""
    found: set[pathlib.PurePosixPath] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            relative = pathlib.PurePosixPath(path.relative_to(ROOT).as_posix())
            is_link = any((ROOT / part).is_symlink() for part in relative.parents)
            if path.name != "__init__.py" and not is_link:
                found.add(relative.parent)
    return sorted(found - {pathlib.PurePosixPath("src"), pathlib.PurePosixPath("src/octavo")})


def test_every_room_is_on_the_map() -> None:
    """In the table of ARCHITECTURE.md, or in the DESIGN.md of the room around it."""
    shown = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    missing: list[str] = []
    for room in rooms():
        texts = [shown]
        texts += [
            design.read_text(encoding="utf-8")
            for above in room.parents
            if (design := ROOT / above / "DESIGN.md").is_file()
        ]
        if not any(f"`{room}/`" in text or f"`{room.name}/`" in text for text in texts):
            missing.append(str(room))
    assert not missing, f"add to the table of docs/ARCHITECTURE.md: {missing}"
    assert len(rooms()) > 10


def test_every_room_of_the_map_is_there() -> None:
    shown = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = shown[shown.index("## Rooms") : shown.index("## Decisions")]
    named = re.findall(r"^\| `([^`]+)/`", table, re.MULTILINE)
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).is_dir()] == []


def test_every_decision_is_listed_once() -> None:
    listed = re.findall(r"\]\(adr/([^)]+)\)", (ROOT / "docs" / "README.md").read_text("utf-8"))
    there = sorted(path.name for path in (ROOT / "docs" / "adr").glob("0*.md"))
    assert sorted(listed) == there
    numbers = [name.split("-", 1)[0] for name in there]
    assert len(set(numbers)) == len(numbers), "two decisions with one number"
