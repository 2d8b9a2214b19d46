"""Rules about the tree as a whole: what nobody uses, who imports whom, how large a thing may be.

Pure functions over parsed files, so that `test_structure.py` can show each of them a tree that
breaks it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.tidy_rules import Source, dotted, module_of

FILE_LINES_MAX = 500
FILE_LINES_NEARLY = 450
CLASS_METHODS_MAX = 25
IMPURE = frozenset({"asyncio", "grpc", "threading", "time", "concurrent", "socket", "subprocess"})
"""What a core may not import."""

POSITIONAL_MAX = 5
"""Parameters that a call may give by place, `self` not counted."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- what nobody uses --------------------------------------------------------------------------

_WORD = re.compile(r"\w+")
USED_FROM_OUTSIDE = re.compile(
    r"test_|visit_|do_|seekable$|__\w+__$|on_|connection_|data_received|eof_received|pause_writing"
    r"|resume_writing|buffer_updated|get_buffer|streamReader$|initialOffset$|latestOffset$"
    r"|reportLatestOffset$|getDefaultReadLimit$|prepareForTriggerAvailableNow$"
)
"""Names that a library calls by themselves: pytest, asyncio's protocols, signal handlers, Spark."""


def dead_declarations(sources: list[Source], other_texts: Iterable[str]) -> list[str]:
    """Functions, classes and constants of the library whose name stands nowhere else.

    A name counts as used when it stands a second time in the library, in the tools and
    benchmarks, or in another text that ships (the command's entry points, say). Tests alone do
    not make it used. Decorated functions are left out: a decorator may hand them on.
    """
    words: Counter[str] = Counter()
    for source in sources:
        if not source.path.startswith("tests/"):
            words.update(_WORD.findall(source.text))
    for text in other_texts:
        words.update(_WORD.findall(text))
    return [
        f"{source.path}:{line}: {name}"
        for source in sources
        if source.is_library
        for name, line in _declared(source.tree)
        if words[name] == 1 and not USED_FROM_OUTSIDE.match(name)
    ]


def _declared(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, Function) and not node.decorator_list
        ):
            yield node.name, node.lineno
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        yield from ((one.id, node.lineno) for one in targets if isinstance(one, ast.Name))


# --- who imports whom --------------------------------------------------------------------------


def imports_of(source: Source, known: set[str]) -> set[str]:
    """Modules of ours that a file names in an import, wherever it stands: also for types only."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(
                full if (full := f"{node.module}.{name.name}") in known else node.module
                for name in node.names
            )
    return found & known


def circles(sources: list[Source]) -> list[list[str]]:
    """Groups of modules that name each other in a loop, package `__init__` files left out."""
    library = [s for s in sources if s.is_library and not s.path.endswith("__init__.py")]
    known = {module_of(source.path) for source in library}
    graph = {module_of(s.path): imports_of(s, known) - {module_of(s.path)} for s in library}
    reach = {name: _reachable(graph, name) for name in graph}
    found = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in graph
        if name in reach[name]
    }
    return [list(circle) for circle in sorted(found)]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += graph[name]
    return seen


def impure_imports(source: Source) -> list[str]:
    """What a core imports that has to do with I/O, clocks or threads."""
    found: list[str] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found += [f"{source.path}:{node.lineno}: {n}" for n in names if n.split(".")[0] in IMPURE]
    return found


# --- sizes -------------------------------------------------------------------------------------


def large_files(sources: list[Source], above: int = FILE_LINES_MAX) -> dict[str, int]:
    """Library files that are not read in one sitting."""
    counts = {s.path: s.text.count("\n") for s in sources if s.is_library}
    return {path: count for path, count in counts.items() if count > above}


def large_classes(sources: list[Source], folders: tuple[str, ...]) -> dict[str, int]:
    """Classes with more methods than one can keep in mind."""
    return {
        f"{source.path}:{node.name}": count
        for source in sources
        if source.path.startswith(folders)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        and (count := sum(isinstance(one, Function) for one in node.body)) > CLASS_METHODS_MAX
    }


def many_positional(sources: list[Source]) -> dict[str, int]:
    """Functions that take more by place than a reader of the call can tell apart.

    Commands are left out: their parameters are options that Typer gives by name.
    """
    return {
        f"{source.path}:{node.name}": count
        for source in sources
        if source.is_library and not source.path.startswith("src/octavo/cli/")
        for node in ast.walk(source.tree)
        if isinstance(node, Function) and (count := len(_by_place(node))) > POSITIONAL_MAX
    }


def _by_place(function: Function) -> list[ast.arg]:
    given = [*function.args.posonlyargs, *function.args.args]
    return given[1:] if given and given[0].arg in ("self", "cls") else given


def tasks_without_owner(source: Source) -> int:
    """Calls of `ensure_future`, which makes a task that no TaskOwner knows."""
    return sum(
        isinstance(node, ast.Call) and dotted(node.func).endswith("ensure_future")
        for node in ast.walk(source.tree)
        if source.is_library
    )


ROOM_OF_WORD = {
    "bookie": "bookie",
    "journal": "bookie",
    "scrub": "bookie",
    "surplus": "bookie",
    "broker": "serving",
    "fetch": "serving",
    "group": "serving",
    "partition": "serving",
    "produce": "serving",
    "serving": "serving",
    "topic": "serving",
    "ledger": "client/ledger",
    "quorum": "client/ledger",
    "recovery": "client/ledger",
    "segment": "client/segments",
    "consumer": "client/messaging",
    "commits": "client/messaging",
    "member": "client/messaging",
    "messaging": "client/messaging",
    "producer": "client/messaging",
    "reading": "client/messaging",
    "sdk": "client/messaging",
    "sender": "client/messaging",
    "metadata": "metadata",
    "spark": "spark",
    "sink": "spark",
    "cli": "src/octavo/cli",
    "supervisor": "src/octavo/supervisor",
}
"""Words in names of test files, and the room whose promises such a file proves."""


def room_of_tests(path: str) -> str | None:
    """The room that a test file is about, by the first word of its name that says so."""
    words = re.split(r"[_./]", path.rpartition("/")[2])
    return next((ROOM_OF_WORD[word] for word in words if word in ROOM_OF_WORD), None)


def lines_by_room(sources: list[Source]) -> tuple[Counter[str], Counter[str]]:
    """Lines of the library and of the tests by room; "" holds what belongs to no one room."""
    rooms = sorted(set(ROOM_OF_WORD.values()))
    library: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for source in sources:
        count = source.text.count("\n")
        if source.path.startswith("tests/"):
            tests[room_of_tests(source.path) or ""] += count
        elif source.is_library:
            found = next((room for room in rooms if source.path.startswith(f"{room}/")), "")
            library[found] += count
    return library, tests
