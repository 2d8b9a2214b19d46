"""The rules that `test_tidy.py` holds every file of the repository to (style.md §3).

A rule looks at one parsed file and yields (line, complaint); a complaint names what to do instead.
Everything that ruff already checks is left to ruff.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "serving", "bookie", "metadata", "client", "proto", "spark", "chaos")
"""Folders whose code ships (chaos is importable in a checkout only)."""
OTHER_FOLDERS = ("tests", "tools", "bench", "examples")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
FUNCTION_LINES_P99_MAX = 60
TEXT_SUFFIXES = (".py", ".md", ".toml", ".yml", ".yaml", ".proto", ".json", ".pyi", ".cfg", "")

Complaint = tuple[int, str]


class Source(NamedTuple):
    """One Python file of ours."""

    path: str
    """Relative to the repository, with forward slashes."""
    text: str
    tree: ast.Module

    @property
    def is_library(self) -> bool:
        """Whether it ships in the wheel or is chaos."""
        return self.path.startswith(tuple(f"{folder}/" for folder in FOLDERS))


Rule = Callable[[Source], Iterator[Complaint]]


def parse(path: str, text: str) -> Source:
    """A Source from text; also how the rules are tested."""
    return Source(path, text, ast.parse(text))


def our_sources() -> list[Source]:
    """Every Python file except generated code, in a stable order."""
    found: list[Source] = []
    for folder in (*FOLDERS, *OTHER_FOLDERS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT).as_posix()
            is_link = any(parent.is_symlink() for parent in (path, *path.parents) if parent != ROOT)
            if "_pb2" in path.name or is_link:
                continue
            found.append(parse(relative, path.read_text(encoding="utf-8")))
    return found


# --- budgets -----------------------------------------------------------------------------------


def file_length(source: Source) -> Iterator[Complaint]:
    """Files stay readable in one sitting."""
    count = source.text.count("\n")
    if count > FILE_LINES_MAX:
        yield count, f"{count} lines, at most {FILE_LINES_MAX}: split it by noun"


def function_lengths(source: Source) -> Iterator[tuple[str, int, int]]:
    """(name, line, lines without the docstring) of every function."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            is_doc = ast.get_docstring(node, clean=False) is not None
            doc = (first.end_lineno or 0) - first.lineno + 1 if is_doc else 0
            yield node.name, node.lineno, (node.end_lineno or 0) - node.lineno + 1 - doc


def function_length(source: Source) -> Iterator[Complaint]:
    """Functions fit on a screen."""
    for name, line, count in function_lengths(source):
        if count > FUNCTION_LINES_MAX:
            yield line, f"{name} has {count} lines, at most {FUNCTION_LINES_MAX}: move leaves out"


def module_docstring(source: Source) -> Iterator[Complaint]:
    """Each module says what it owns."""
    if not ast.get_docstring(source.tree):
        yield 1, "no module docstring: say what it owns and who calls it"


def module_name(source: Source) -> Iterator[Complaint]:
    """Modules are nouns of the domain."""
    stem = pathlib.PurePosixPath(source.path).stem
    if stem in ("utils", "util", "helpers", "helper", "common", "manager", "misc"):
        yield 1, f"module {stem}: name the thing it holds"


def docstring_layout(source: Source) -> Iterator[Complaint]:
    """A formatter that takes a table for prose runs its lines together, or cuts a summary off."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False) or ""
            line, margin = getattr(node, "lineno", 1), node.body[0].col_offset if text else 0
            if any(_COLUMNS.match(one[margin:]) for one in text.splitlines()[1:]):
                yield line, "a table in a docstring that is not indented: indent it by four"
            summary = text.split("\n\n")[0]
            if summary.count("(") > summary.count(")"):
                yield line, "the first paragraph of a docstring ends inside a parenthesis"


_COLUMNS = re.compile(r"\S.*\S {3,}\S")
"""A line that begins at the margin and has columns."""


# --- banned calls ------------------------------------------------------------------------------


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute chain, "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else f"?.{node.attr}"
    return f"{dotted(node.func)}()" if isinstance(node, ast.Call) else ""


def calls(source: Source) -> Iterator[tuple[str, ast.Call]]:
    """Every call with its dotted name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def no_time_sleep(source: Source) -> Iterator[Complaint]:
    """Servers never block their loop; tests wait for a condition."""
    for name, node in calls(source):
        if name == "time.sleep":
            yield node.lineno, "time.sleep: use Clock.sleep, or wait for the condition"


def no_print(source: Source) -> Iterator[Complaint]:
    """Library code logs, commands write through cli.output."""
    for name, node in calls(source):
        if source.is_library and name == "print":
            yield node.lineno, "print: use runtime.telemetry, or cli.output in a command"


def no_bare_task(source: Source) -> Iterator[Complaint]:
    """Each task has an owner that awaits it."""
    if not source.is_library or source.path.endswith("runtime/tasks.py"):
        return
    for name, node in calls(source):
        loop_task = name.endswith((".get_running_loop().create_task", "loop.create_task"))
        if name in ("asyncio.create_task", "create_task") or loop_task:
            yield node.lineno, f"{name}: use runtime.tasks.TaskOwner.spawn or a TaskGroup"


def no_builtin_hash(source: Source) -> Iterator[Complaint]:
    """hash() of text differs in every process."""
    for name, node in calls(source):
        if source.is_library and name == "hash":
            yield (
                node.lineno,
                "hash(): use murmur2, crc32c or hashlib, which are the same everywhere",
            )


def no_hidden_randomness(source: Source) -> Iterator[Complaint]:
    """Randomness is passed in, so that a seed reproduces a run."""
    if not source.is_library or source.path.endswith("runtime/entropy.py"):
        return
    for name, node in calls(source):
        if name.startswith(("random.", "secrets.")) or name in ("os.urandom", "uuid.uuid4"):
            yield node.lineno, f"{name}: use an Entropy that is passed in"


def no_dict_iteration_of_rocksdb(source: Source) -> Iterator[Complaint]:
    """rocksdict's dict-style iteration ends early and silently on an I/O error."""
    handle = re.compile(r"(^|[._])(db|rocks\w*|rdict)$")
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            target = (
                dotted(node.iter.func) if isinstance(node.iter, ast.Call) else dotted(node.iter)
            )
            owner, _, method = target.rpartition(".")
            direct = handle.search(target) is not None and not isinstance(node.iter, ast.Call)
            if direct or (method in ("items", "keys", "values") and handle.search(owner)):
                yield node.iter.lineno, f"{target}: use an explicit iterator and check its status"


def no_unbounded_queue(source: Source) -> Iterator[Complaint]:
    """Every queue has a named maximum."""
    for name, node in calls(source):
        is_queue = name.rpartition(".")[2] in ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue")
        if source.is_library and is_queue and not node.args and not node.keywords:
            yield node.lineno, f"{name}() is unbounded: give it a named maximum"


_DIALS_OR_LISTENS = re.compile(
    r"(^|\.)((in)?secure_channel|(grpc|aio)\.server|add_(in)?secure_port"
    r"|(start|open|create)_(unix_)?(server|connection)|create_datagram_endpoint)$"
)


def one_place_dials_and_listens(source: Source) -> Iterator[Complaint]:
    """What every connection needs is given in one place: liveness, TLS, how to stop listening."""
    if not source.is_library or source.path == "proto/endpoints.py":
        return
    for name, node in calls(source):
        if _DIALS_OR_LISTENS.search(name) and name != "socket.create_connection":
            yield node.lineno, f"{name}: use proto.endpoints, the one place that dials and listens"


THREADS_ALLOWED = {
    "src/octavo/runtime/workers.py": "the place itself",
    "client/messaging/sync/loop_thread.py": "the SDK's loop outlives forks and interpreter exits",
    "client/messaging/sync/log_relay.py": "logs on while the SDK's loop is held up",
    "src/octavo/cli/checkup.py": "asks the resolver, which may never answer, and leaves it behind",
    "src/octavo/testing.py": "reads a child's output inside an application's own process",
}
"""Who starts threads, and why it is not a worker of a server."""


def one_place_starts_threads(source: Source) -> Iterator[Complaint]:
    """A thread has a name, an orderly end and somebody who hears of its failure."""
    if not source.is_library or source.path in THREADS_ALLOWED:
        return
    for name, node in calls(source):
        if name.rpartition(".")[2] in ("Thread", "Timer", "ThreadPoolExecutor"):
            yield node.lineno, f"{name}: use runtime.workers, the one place that starts threads"


def no_swallowed_error(source: Source) -> Iterator[Complaint]:
    """An error that is caught broadly is handled or reported."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or dotted(node.type) in ("Exception", "BaseException")
            if broad and all(isinstance(step, ast.Pass) for step in node.body):
                yield node.lineno, "broad except with pass: name the error, or report it"


def no_assert_of_behaviour(source: Source) -> Iterator[Complaint]:
    """Under PYTHONOPTIMIZE an assertion is not there: it may tell a type, never guard or do.

    In test modules pytest keeps assertions; what helps tests may judge by them and do nothing.
    """
    is_test = source.path.rpartition("/")[2].startswith("test_")
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Assert) or is_test:
            continue
        if source.is_library and not _tells_a_type(node.test):
            yield node.lineno, "assert that guards or does something: use invariant() or raise"
        elif any(isinstance(part, ast.Await) for part in ast.walk(node.test)):
            yield node.lineno, "assert that awaits: under -O nothing is done; await it before"


def _tells_a_type(test: ast.expr) -> bool:
    """`x.y is not None` or `isinstance(x.y, T)`, without a call inside."""
    if isinstance(test, ast.Call) and dotted(test.func) == "isinstance":
        parts = list(test.args)
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
        parts = [test.left, *test.comparators]
    else:
        return False
    inner = (node for part in parts for node in ast.walk(part))
    return not any(isinstance(node, ast.Call | ast.NamedExpr | ast.Await) for node in inner)


def no_placeholder(source: Source) -> Iterator[Complaint]:
    """What is not built is not there."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            target = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if dotted(target) == "NotImplementedError":
                yield node.lineno, "NotImplementedError: use a Protocol, or leave it out"


LOCAL_IMPORTS_ALLOWED = ("src/octavo/__main__.py", "src/octavo/cli/", "spark/source.py")
"""Commands must start fast, and Spark pickles the source into workers; each place says so."""


def no_local_internal_import(source: Source) -> Iterator[Complaint]:
    """Dependencies are visible at the top of a file."""
    if not source.is_library or source.path.startswith(LOCAL_IMPORTS_ALLOWED):
        return
    for function in ast.walk(source.tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("octavo"):
                    yield node.lineno, f"local import of {node.module}: move it to the top"


# --- text --------------------------------------------------------------------------------------

# Built from parts so that this file passes its own rules.
UNFINISHED = re.compile(
    r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b"
)
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me")) + r")/\w"
)


def unfinished_text(text: str) -> Iterator[Complaint]:
    """Work is finished or it is an issue."""
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield number, "unfinished mark: do it, or write an issue"


def machine_path(text: str) -> Iterator[Complaint]:
    """No path of somebody's machine."""
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE_PATH.search(line):
            yield number, "path of a particular machine: use a relative one or a temporary folder"


SOURCE_RULES: tuple[Rule, ...] = (
    file_length,
    function_length,
    module_docstring,
    docstring_layout,
    module_name,
    no_time_sleep,
    no_print,
    no_bare_task,
    no_builtin_hash,
    no_hidden_randomness,
    no_dict_iteration_of_rocksdb,
    no_unbounded_queue,
    one_place_dials_and_listens,
    one_place_starts_threads,
    no_swallowed_error,
    no_assert_of_behaviour,
    no_placeholder,
    no_local_internal_import,
)
TEXT_RULES = (unfinished_text, machine_path)


# --- imports -----------------------------------------------------------------------------------


def module_of(path: str) -> str:
    """Import name of a file: `bookie/journal/writer.py` is `octavo.bookie.journal.writer`."""
    dots = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return dots.removeprefix("src.") if dots.startswith("src.") else f"octavo.{dots}"
