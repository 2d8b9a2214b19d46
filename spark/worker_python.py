"""How the source's classes reach Spark's Python workers, and what a worker without Octavo says.

Spark pickles the classes and its workers unpickle them: by name, so a worker whose interpreter has
no Octavo dies in the unpickler, before any code of ours, with a bare `ModuleNotFoundError`. Here a
class of the metaclass below carries the import along as code, by value, and the import that fails
says which interpreter it was and how to name another one. It costs some hundred bytes a query.
"""

from __future__ import annotations

import copyreg
from abc import ABCMeta
from collections.abc import Callable


class ImportedByWorkers(ABCMeta):
    """Metaclass of the classes that Spark sends to its Python workers."""


def _reduce(
    cls: ImportedByWorkers,
) -> tuple[Callable[[str, str], ImportedByWorkers], tuple[str, str]]:
    """`copyreg`'s answer for such a class: the function by value, the class by name."""
    return _loader(), (cls.__module__, cls.__qualname__)


def _loader() -> Callable[[str, str], ImportedByWorkers]:
    # cloudpickle takes a nested function by value: the worker needs no module of ours to run it.
    # So it uses nothing from outside itself, and works on interpreters that Octavo does not.
    def load_class(module: str, name: str) -> ImportedByWorkers:
        import importlib
        import sys

        try:
            found: ImportedByWorkers = getattr(importlib.import_module(module), name)
            return found
        except ImportError as error:
            raise ImportError(
                "Spark's Python worker runs %s (Python %s), which cannot import %s: %s. "  # noqa: UP031
                "Set the environment variable PYSPARK_PYTHON to the interpreter of the environment "
                "that has octavo[spark], on each machine, before the session starts"
                % (sys.executable, sys.version.split()[0], module, error)
            ) from None

    return load_class


copyreg.pickle(ImportedByWorkers, _reduce)
