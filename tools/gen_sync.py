"""Write the blocking classes of the SDK from the async ones; `--check` fails when they differ.

Run as `python -m tools.gen_sync [--check]` from the repository. The async classes in
`client/messaging/api/` are the source: every public method of a class in `TWINS` gets a blocking
twin with the same name, arguments and text, which runs it on the client's loop thread. What differs
on purpose stands in `client/messaging/sync/by_hand.py`; a method that is defined there is not
written.
"""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
API = ROOT / "client" / "messaging" / "api"
SYNC = ROOT / "client" / "messaging" / "sync"
PACKAGE = "octavo.client.messaging"
HEAD = '''"""{title}

Written by `tools/gen_sync.py` from `api/{source}`: change that, then run `make sync`.
"""

from __future__ import annotations

'''
TWIN_NAMES = {
    name: name.removeprefix("Async")
    for name in (
        "AsyncAdmin",
        "AsyncClient",
        "AsyncConsumer",
        "AsyncFleetAdmin",
        "AsyncGroupAdmin",
        "AsyncGroupConsumer",
        "AsyncProducer",
        "AsyncQuotaAdmin",
        "AsyncReader",
        "AsyncSinkAdmin",
        "AsyncTableView",
    )
}
WORDS = {**TWIN_NAMES, "AsyncIterator": "Iterator", "async with": "with"}
"""What the text of a blocking method says instead."""

NARROWER = {"Consumer": "AsyncGroupConsumer"}
"""What a method that is said to return the first may return instead: its twin is made then."""

Method = ast.FunctionDef | ast.AsyncFunctionDef


class Twin(NamedTuple):
    """One class to write."""

    name: str
    """Of the async class."""
    module: str
    """Of both, below `api` and below `sync`."""
    title: str
    bases: tuple[str, ...]
    note: str
    """What the class says besides what the async one says."""
    inside: frozenset[str] = frozenset()
    """Public names of the async class that only the package itself uses."""


TWINS = (
    Twin("AsyncGroupAdmin", "group_admin", "The blocking admin of groups.", ("AdminByHand",), ""),
    Twin("AsyncFleetAdmin", "fleet_admin", "The blocking admin of brokers.", ("GroupAdmin",), ""),
    Twin("AsyncQuotaAdmin", "quota_admin", "The blocking admin of quotas.", ("FleetAdmin",), ""),
    Twin("AsyncSinkAdmin", "sink_admin", "The blocking admin of sinks.", ("QuotaAdmin",), ""),
    Twin("AsyncAdmin", "admin", "The blocking admin.", ("SinkAdmin",), ""),
    Twin(
        "AsyncConsumer",
        "consumer",
        "The blocking consumer.",
        ("ConsumerByHand",),
        "For one thread at a time.",
        frozenset({"buffered_bytes"}),
    ),
    Twin(
        "AsyncGroupConsumer",
        "group_consumer",
        "The blocking consumer of a group.",
        ("GroupConsumerByHand", "Consumer"),
        "For one thread at a time.",
        frozenset({"end"}),
    ),
    Twin(
        "AsyncReader",
        "reader",
        "The blocking reader.",
        ("ReaderByHand", "Consumer"),
        "For one thread at a time.",
        frozenset({"begin_to_end", "start"}),
    ),
    Twin(
        "AsyncTableView",
        "table_view",
        "The blocking table of a topic.",
        ("TableViewByHand",),
        "Reading is safe from many threads.",
        frozenset({"load"}),
    ),
    Twin(
        "AsyncClient",
        "client",
        "The blocking client.",
        ("ClientByHand",),
        "Safe to use from many threads. Unsent records are sent before the interpreter exits;\n"
        "    what cannot be sent is reported.",
    ),
)


def in_blocking_words(text: str) -> str:
    """A text or annotation of the async flavour, as the blocking one says it."""
    for word, instead in WORDS.items():
        text = re.sub(rf"\b{word}\b", instead, text)
    return text


def class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    """A class of a module."""
    return next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)


def public_methods(node: ast.ClassDef, left_out: frozenset[str]) -> list[Method]:
    """What a user may call, overloads included."""
    return [
        one
        for one in node.body
        if isinstance(one, Method) and not one.name.startswith("_") and one.name not in left_out
    ]


def by_hand() -> dict[str, frozenset[str]]:
    """Names defined in each class of `by_hand.py`."""
    tree = ast.parse((SYNC / "by_hand.py").read_text(encoding="utf-8"))
    return {
        node.name: frozenset(one.name for one in node.body if isinstance(one, Method))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def written(twin: Twin) -> str:
    """The module of a twin."""
    source = (API / f"{twin.module}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    node = class_of(tree, twin.name)
    hand = by_hand().get(twin.bases[0], frozenset())
    methods = public_methods(node, twin.inside | hand)
    body = [f"class {TWIN_NAMES[twin.name]}({', '.join(twin.bases)}):", _class_text(node, twin), ""]
    for method in methods:
        body += [*_method(method), ""]
    code = "\n".join(body).rstrip() + "\n"
    head = HEAD.format(title=twin.title, source=f"{twin.module}.py")
    return head + "\n".join(_imports(tree, twin, code)) + "\n\n\n" + code


def _class_text(node: ast.ClassDef, twin: Twin) -> str:
    text = in_blocking_words(ast.get_docstring(node, clean=False) or "").rstrip()
    if twin.note:
        first, blank, rest = text.partition("\n")
        text = f"{first}\n\n    {twin.note}{blank}{rest}"
    if "\n" in text:
        text += "\n    "
    return f'    """{text}"""'


def _method(method: Method) -> Iterator[str]:
    decorators = [ast.unparse(one) for one in method.decorator_list]
    returns = in_blocking_words(ast.unparse(method.returns)) if method.returns else "None"
    twin = next((t for t in TWIN_NAMES.values() if re.match(rf"{t}\b", returns)), "")
    kept = "property" in decorators and twin
    yield from (f"    @{one}" for one in decorators)
    yield f"    def {method.name}({in_blocking_words(ast.unparse(method.args))}) -> {returns}:"
    if "overload" in decorators:
        yield "        ..."
        return
    text = in_blocking_words(ast.get_docstring(method, clean=False) or "")
    yield f'        """{text}"""'
    call = f"self._async.{method.name}"
    if "property" not in decorators:
        call = f"{call}({', '.join(_given(method.args))})"
    if isinstance(method, ast.AsyncFunctionDef):
        run = f"self._thread.run({call})"
        yield f"        {run if returns == 'None' else f'return {run}'}"
    elif kept:  # one object for ever, and nobody puts another in its place
        yield f"        return self._kept_{method.name}"
        yield "    @cached_property"
        yield f"    def _kept_{method.name}(self) -> {returns}:"
        yield f"        return {twin}(self._thread, {call}, self._held)"
    elif twin:
        yield "        self._thread.check()"
        if (narrow := NARROWER.get(twin)) is not None:
            given = call.removeprefix(f"self._async.{method.name}")
            yield f"        make = cast(Callable[..., Async{twin}], self._async.{method.name})"
            yield f"        made = make{given}"
            yield f"        if isinstance(made, {narrow}):"
            yield f"            return {TWIN_NAMES[narrow]}(self._thread, made, self._held)"
            call = "made"
        yield f"        return {twin}(self._thread, {call}, self._held)"
    else:
        yield f"        return {call}"


def _given(args: ast.arguments) -> Iterator[str]:
    """The arguments handed on; an iterable of the user's is walked in the caller's thread."""
    for arg in [*args.posonlyargs, *args.args][1:]:
        yield _walked(arg)
    if args.vararg:
        yield f"*{args.vararg.arg}"
    for arg in args.kwonlyargs:
        yield f"{arg.arg}={_walked(arg)}"
    if args.kwarg:
        yield f"**{args.kwarg.arg}"


def _walked(arg: ast.arg) -> str:
    kind = ast.unparse(arg.annotation) if arg.annotation else ""
    if (found := re.match(r"str \| Iterable\b.*?( \| None)?$", kind)) is not None:
        none = f"{arg.arg} is None or " if found[1] else ""
        return f"{arg.arg} if {none}isinstance({arg.arg}, str) else list({arg.arg})"
    return f"list({arg.arg})" if re.match(r"Iterable\b(?!.*None)", kind) else arg.arg


def _imports(tree: ast.Module, twin: Twin, code: str) -> Iterator[str]:
    """Imports of every name the code uses, from where the async module has it."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    known = dict(_imported(tree.body))
    for_types = {
        name: line
        for node in tree.body
        if isinstance(node, ast.If)
        for name, line in _imported(node.body)
    }
    known.update(for_types)
    own = f"from {PACKAGE}.api.{twin.module} import "
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            known[node.name] = own + node.name
        elif isinstance(node, ast.Assign):
            known.update({t.id: own + t.id for t in node.targets if isinstance(t, ast.Name)})
    homes = {TWIN_NAMES[twin.name]: twin.module for twin in TWINS} | {"Producer": "producer"}
    known.update(
        {name: f"from {PACKAGE}.sync.{home} import {name}" for name, home in homes.items()}
    )
    known.update({name: f"from {PACKAGE}.sync.by_hand import {name}" for name in by_hand()})
    known["cast"] = "from typing import cast"
    known["cached_property"] = "from functools import cached_property"
    wanted = sorted(used & known.keys() - {TWIN_NAMES[twin.name]})
    yield from (known[name] for name in wanted if name not in for_types)
    if later := [for_types[name] for name in wanted if name in for_types]:
        yield "from typing import TYPE_CHECKING"
        yield "if TYPE_CHECKING:"
        yield from (f"    {line}" for line in later)


def _imported(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Names that these statements import, and how."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                named = f" as {alias.asname}" if alias.asname else ""
                yield alias.asname or alias.name, f"import {alias.name}{named}"


def formatted(text: str, name: str) -> str:
    """As `make format` leaves it."""
    ruff = [str(pathlib.Path(sys.executable).parent / "ruff")]
    for step in (["check", "--fix", "--select=I,F401", "-q"], ["format", "-q"]):
        command = [*ruff, *step, f"--stdin-filename={SYNC / name}", "-"]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, cwd=ROOT, check=True
        )
        text = done.stdout
    return text


def main() -> int:
    """Write, or compare and report the files that differ."""
    check = "--check" in sys.argv[1:]
    stale: list[str] = []
    for twin in TWINS:
        path = SYNC / f"{twin.module}.py"
        text = formatted(written(twin), path.name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"sync: stale generated code: {', '.join(stale)}; run `make sync`")
        return 1
    if not check:
        print(f"sync: {len(stale)} of {len(TWINS)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
