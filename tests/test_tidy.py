"""Budgets and bans of style.md, held by reading every file of the repository."""

from __future__ import annotations

import functools
import pathlib
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests import tidy_rules
from tests.tidy_rules import ROOT, Complaint, Rule, Source


@functools.cache
def sources() -> list[Source]:
    return tidy_rules.our_sources()


@functools.cache
def texts() -> list[tuple[str, str]]:
    """(path, text) of every text file under version control or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        return [(source.path, source.text) for source in sources()]
    found: list[tuple[str, str]] = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        is_text = path.suffix in tidy_rules.TEXT_SUFFIXES and path.is_file()
        if is_text and not path.is_symlink() and "_pb2" not in name:
            found.append((name, path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("rule", tidy_rules.SOURCE_RULES, ids=lambda rule: rule.__name__)
def test_every_source_file_keeps(rule: Rule) -> None:
    complaints = [
        f"{source.path}:{line}: {text}" for source in sources() for line, text in rule(source)
    ]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("rule", tidy_rules.TEXT_RULES, ids=lambda rule: rule.__name__)
def test_every_text_file_keeps(rule: Callable[[str], Iterator[Complaint]]) -> None:
    complaints = [f"{path}:{line}: {why}" for path, text in texts() for line, why in rule(text)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_p99_of_function_lengths() -> None:
    lengths = sorted(
        count
        for source in sources()
        if source.is_library
        for _, _, count in tidy_rules.function_lengths(source)
    )
    assert lengths[int(len(lengths) * 0.99)] <= tidy_rules.FUNCTION_LINES_P99_MAX


def test_the_whole_tree_is_read() -> None:
    """A rule that sees nothing passes: make sure that the walk finds every folder."""
    seen = {source.path.split("/", 1)[0] for source in sources()}
    assert set(tidy_rules.FOLDERS) <= seen
    assert "tests" in seen
    assert any(path == "Makefile" for path, _ in texts())


BAD: list[tuple[Rule, str]] = [
    (tidy_rules.file_length, "x = 1\n" * 601),
    (tidy_rules.function_length, "def f():\n" + "    x = 1\n" * 70),
    (tidy_rules.module_docstring, "x = 1\n"),
    (tidy_rules.docstring_layout, '"""What.\n\nkey    value\nlonger key    value\n"""\n'),
    (tidy_rules.docstring_layout, 'def f():\n    """Wait (see §5.\n\n    No more).\n    """\n'),
    (tidy_rules.no_time_sleep, "import time\ntime.sleep(1)\n"),
    (tidy_rules.no_print, "print('x')\n"),
    (tidy_rules.no_bare_task, "asyncio.create_task(f())\n"),
    (tidy_rules.no_bare_task, "asyncio.get_running_loop().create_task(f())\n"),
    (tidy_rules.no_bare_task, "self._loop.create_task(f())\n"),
    (tidy_rules.no_builtin_hash, "x = hash('a')\n"),
    (tidy_rules.no_hidden_randomness, "x = random.random()\n"),
    (tidy_rules.no_hidden_randomness, "x = os.urandom(4)\n"),
    (tidy_rules.no_dict_iteration_of_rocksdb, "for k, v in self._db.items():\n    pass\n"),
    (tidy_rules.no_dict_iteration_of_rocksdb, "x = [k for k in db]\n"),
    (tidy_rules.no_unbounded_queue, "q = asyncio.Queue()\n"),
    (tidy_rules.one_place_dials_and_listens, "c = grpc.aio.insecure_channel('a:1')\n"),
    (tidy_rules.one_place_dials_and_listens, "s = grpc.aio.server(options=server_options())\n"),
    (tidy_rules.one_place_dials_and_listens, "s.add_insecure_port('a:1')\n"),
    (tidy_rules.one_place_dials_and_listens, "await asyncio.open_connection('a', 1)\n"),
    (tidy_rules.one_place_dials_and_listens, "await asyncio.start_server(f, 'a', 1)\n"),
    (tidy_rules.one_place_dials_and_listens, "await asyncio.start_unix_server(f, 'a')\n"),
    (tidy_rules.one_place_dials_and_listens, "await loop.create_connection(f, 'a', 1)\n"),
    (tidy_rules.one_place_dials_and_listens, "await get_loop().create_server(f, 'a', 1)\n"),
    (tidy_rules.one_place_starts_threads, "t = threading.Thread(target=f)\n"),
    (tidy_rules.one_place_starts_threads, "with ThreadPoolExecutor(4) as pool:\n    pass\n"),
    (tidy_rules.no_swallowed_error, "try:\n    f()\nexcept Exception:\n    pass\n"),
    (tidy_rules.no_assert_of_behaviour, "assert x > 0\n"),
    (tidy_rules.no_assert_of_behaviour, "assert queue.pop() is not None\n"),
    (tidy_rules.no_assert_of_behaviour, "assert isinstance(f(), int)\n"),
    (tidy_rules.no_placeholder, "def f():\n    raise NotImplementedError('later')\n"),
    (tidy_rules.no_local_internal_import, "def f():\n    from octavo.runtime import clock\n"),
]


@pytest.mark.parametrize(("rule", "text"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_rule_finds_what_it_is_for(rule: Rule, text: str) -> None:
    assert list(rule(tidy_rules.parse("bookie/sample.py", text)))


GOOD: list[tuple[Rule, str]] = [
    (tidy_rules.docstring_layout, '"""Offsets [first, end).\n\n    key    value\n"""\n'),
    (tidy_rules.function_length, 'def f():\n    """a\n' + "    b\n" * 80 + '    """\n'),
    (tidy_rules.no_bare_task, "async def f():\n    group.create_task(g())\n"),
    (tidy_rules.no_dict_iteration_of_rocksdb, "for x in read_all(db):\n    pass\n"),
    (tidy_rules.no_unbounded_queue, "q = asyncio.Queue(MAX)\n"),
    (tidy_rules.one_place_dials_and_listens, "s = grpc_server(('a', 1))\n"),
    (tidy_rules.one_place_starts_threads, "w = Worker('commit', f, g)\n"),
    (tidy_rules.no_swallowed_error, "try:\n    f()\nexcept KeyError:\n    pass\n"),
    (tidy_rules.no_assert_of_behaviour, "assert self._loop is not None\n"),
    (tidy_rules.no_assert_of_behaviour, "assert isinstance(batch, Batch)\n"),
]


@pytest.mark.parametrize(("rule", "text"), GOOD, ids=lambda value: getattr(value, "__name__", ""))
def test_rule_lets_good_code_pass(rule: Rule, text: str) -> None:
    assert not list(rule(tidy_rules.parse("bookie/sample.py", text)))


def test_what_helps_tests_does_nothing_inside_of_an_assertion() -> None:
    """Six sweeps of a scrub stored nothing under PYTHONOPTIMIZE, and waited for it."""
    rule, text = tidy_rules.no_assert_of_behaviour, "async def f():\n    assert await g() == 1\n"
    assert list(rule(tidy_rules.parse("tests/some_world.py", text)))
    assert not list(rule(tidy_rules.parse("tests/unit/test_some.py", text)))
    assert not list(rule(tidy_rules.parse("tests/some_world.py", "assert x == 1\n")))


def test_who_may_start_threads_does() -> None:
    """The list of exceptions may only become shorter."""
    for path in tidy_rules.THREADS_ALLOWED:
        text = (tidy_rules.ROOT / path).read_text(encoding="utf-8")
        assert list(tidy_rules.one_place_starts_threads(tidy_rules.parse("bookie/a.py", text))), (
            path
        )


def test_text_rules_find_what_they_are_for() -> None:
    assert list(tidy_rules.unfinished_text("x = 1  # TO" + "DO later"))
    assert list(tidy_rules.machine_path("see /ro" + "ot/notes"))
    assert not list(tidy_rules.machine_path("zk://host:2181/octavo and a/work" + "/b"))


def test_module_names_follow_the_links() -> None:
    assert tidy_rules.module_of("bookie/journal/writer.py") == "octavo.bookie.journal.writer"
    assert tidy_rules.module_of("src/octavo/runtime/clock.py") == "octavo.runtime.clock"
    assert tidy_rules.module_of("client/__init__.py") == "octavo.client"
    assert pathlib.Path(ROOT / "src" / "octavo").is_dir()
