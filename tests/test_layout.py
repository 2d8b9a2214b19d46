"""One import package over fixed top-level folders: each trap of that layout held by a test."""

from __future__ import annotations

import pathlib
import tomllib
from typing import Any

import pytest
from setuptools import find_packages  # type: ignore[import-untyped]

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "octavo"
LINKS = ("bookie", "chaos", "client", "metadata", "proto", "serving", "spark")
NOT_SHIPPED = {"octavo.chaos"}


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LINKS)
def test_top_level_folder_is_linked_into_the_package(name: str) -> None:
    link = PACKAGE / name
    assert not link.is_file(), (
        f"src/octavo/{name} is a text file: this clone was made without symbolic links. "
        "Run `git config core.symlinks true` and check the files out again."
    )
    assert link.is_symlink(), f"src/octavo/{name} must be a link to ../../{name}"
    assert link.readlink() == pathlib.Path("..") / ".." / name
    assert (ROOT / name / "__init__.py").is_file()


def test_no_other_links() -> None:
    assert sorted(p.name for p in PACKAGE.iterdir() if p.is_symlink()) == list(LINKS)


def test_pyright_names_every_part_of_the_package() -> None:
    """pyright does not walk into links: what its list leaves out is silently not checked."""
    listed = set(pyproject()["tool"]["pyright"]["include"])
    parts = {
        f"src/octavo/{path.name}"
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    }
    assert parts <= listed, f"add to [tool.pyright] include: {sorted(parts - listed)}"
    missing = [name for name in listed if not (ROOT / name).exists()]
    assert not missing, f"[tool.pyright] include names what is not there: {missing}"


def test_layers_place_every_part_of_the_package() -> None:
    layers = pyproject()["tool"]["importlinter"]["contracts"][0]["layers"]
    placed = {word.strip() for layer in layers for word in layer.split("|")}
    parts = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.name != "__init__.py"
        and (path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists()))
    }
    assert parts == placed


def test_wheel_holds_every_package_and_nothing_else() -> None:
    find = pyproject()["tool"]["setuptools"]["packages"]["find"]
    shipped = set(find_packages(str(ROOT / "src"), exclude=find["exclude"]))
    there = set(find_packages(str(ROOT / "src")))
    not_shipped = {n for n in there if any(n == x or n.startswith(x + ".") for x in NOT_SHIPPED)}
    assert shipped == there - not_shipped
    assert {f"octavo.{name}" for name in LINKS if name != "chaos"} <= shipped
    assert {
        "octavo.runtime",
        "octavo.cli",
        "octavo.supervisor",
        "octavo.client.messaging",
    } <= shipped


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without `__init__.py` is left out of the wheel without a word."""
    bare = [
        path.parent.relative_to(ROOT).as_posix()
        for folder in (*LINKS, "src/octavo")
        for path in (ROOT / folder).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    assert not bare


def test_typing_marker_ships() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert "py.typed" in pyproject()["tool"]["setuptools"]["package-data"]["*"]
