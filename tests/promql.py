"""Holds expressions of Prometheus against the catalogue of metrics: names, labels, use of counters.

Knows words, strings, numbers, durations and brackets, not the grammar: enough to find every name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from octavo.metrics import catalogue

TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<duration>\[[^\]]*\])|(?P<number>\d+(?:\.\d+)?)'
    r"|(?P<word>[A-Za-z_:][A-Za-z0-9_:]*)|(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){},])|\s+"
)
WORDS = {"and", "or", "unless", "bool", "offset", "group_left", "group_right"}
LISTS = {"by", "without", "on", "ignoring"}
FUNCTIONS = {
    "absent", "count", "histogram_quantile", "increase", "max", "min", "rate", "sum", "time",
    "topk",
}  # fmt: skip
GROWTH = {"rate", "increase"}
OF_SCRAPE = {"job", "instance"}
"""Labels that Prometheus adds."""
SCRAPED = {"up"}
"""Series that Prometheus makes itself."""


class _Token(NamedTuple):
    kind: str
    text: str


class Known(NamedTuple):
    """What may be said of a name."""

    labels: frozenset[str]
    grows: bool
    """It only grows: only its rate means something."""


def _known() -> dict[str, Known]:
    found = {name: Known(frozenset(OF_SCRAPE), grows=False) for name in SCRAPED}
    for metric in catalogue.ALL:
        labels = frozenset({*metric.labels, *OF_SCRAPE})
        if metric.kind == "histogram":
            found[f"{metric.name}_bucket"] = Known(labels | {"le"}, grows=True)
            found[f"{metric.name}_sum"] = Known(labels, grows=True)
            found[f"{metric.name}_count"] = Known(labels, grows=True)
        else:
            found[metric.name] = Known(labels, grows=metric.kind == "counter")
    return found


KNOWN = _known()


def _tokens(expression: str) -> Iterator[_Token]:
    place = 0
    while place < len(expression):
        match = TOKEN.match(expression, place)
        if match is None:
            raise ValueError(f"not understood: {expression[place : place + 20]}")
        place = match.end()
        if match.lastgroup is not None:
            yield _Token(match.lastgroup, match[0])


def names_in(expression: str) -> set[str]:
    """The names of series in an expression, known or not."""
    return set(_Check(expression).names)


def faults(expression: str, legend: str = "") -> list[str]:
    """What is wrong with an expression and with the labels that its legend shows."""
    check = _Check(expression)
    said = check.faults
    shown = re.findall(r"\{\{\s*(\w+)\s*\}\}", legend)
    kept = check.kept
    said += [f"the legend shows {label}, no label that is left" for label in shown
             if label not in kept]  # fmt: skip
    return said


class _Check:
    """One walk over an expression."""

    def __init__(self, expression: str) -> None:
        self.names: list[str] = []
        self.faults: list[str] = []
        self._lists: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._tokens = [*_tokens(expression)]
        self._place = 0
        while self._place < len(self._tokens):
            self._step()
        if self._open:
            self.faults.append("brackets that are not closed")
        labels = {label for name in self.names if name in KNOWN for label in KNOWN[name].labels}
        self.faults += [
            f"{word} ({label}): no series here has it"
            for word, label in self._lists
            if label not in labels
        ]
        by = {label for word, label in self._lists if word == "by"}
        self.kept = by or labels
        """Labels of the result: those of the sums if there are any."""

    def _next(self) -> _Token:
        token = self._tokens[self._place] if self._place < len(self._tokens) else _Token("", "")
        self._place += 1
        return token

    def _peek(self) -> str:
        return self._tokens[self._place].text if self._place < len(self._tokens) else ""

    def _step(self) -> None:
        kind, text = self._next()
        if text == "(":
            self._open.append("(")
        elif text == ")":
            if not self._open:
                self.faults.append("a bracket too many")
            else:
                self._open.pop()
        elif kind == "word" and text in LISTS:
            self._lists += [(text, label) for label in self._list()]
        elif kind == "word" and text in FUNCTIONS:
            if self._peek() == "(":
                self._next()
                self._open.append(text)
        elif kind == "word" and text not in WORDS:
            self._series(text)
        elif text in ("{", "}"):
            self.faults.append("a selector without a name")

    def _list(self) -> list[str]:
        if self._next().text != "(":
            self.faults.append("a list of labels in brackets is missing")
            return []
        found: list[str] = []
        while (token := self._next()).text not in (")", ""):
            if token.kind == "word":
                found.append(token.text)
        return found

    def _series(self, name: str) -> None:
        self.names.append(name)
        known = KNOWN.get(name)
        if known is None:
            self.faults.append(f"{name} is not in the catalogue")
        if self._peek() == "{":
            self._next()
            while (token := self._next()).text not in ("}", ""):
                if token.kind == "word" and known is not None and token.text not in known.labels:
                    self.faults.append(f"{name} has no label {token.text}")
        ranged = self._peek().startswith("[")
        growth = bool(self._open) and self._open[-1] in GROWTH
        if known is not None and known.grows != growth:
            self.faults.append(f"{name}: counters, and they alone, belong in rate or increase")
        if ranged != growth:
            self.faults.append(f"{name}: a range belongs in rate or increase")
