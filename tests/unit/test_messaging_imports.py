"""What importing loads: `import octavo` nearly nothing, the SDK no Arrow and no server parts."""

from __future__ import annotations

import subprocess
import sys

import octavo
from octavo.client import messaging

HEAVY = ("grpc", "pyarrow", "pydantic", "kazoo", "rocksdict", "uvloop", "lz4", "typer")


def loaded_after(code: str, names: tuple[str, ...]) -> list[str]:
    script = f"{code}\nimport sys\nprint([n for n in {names!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180
    )
    return list(eval(done.stdout))


def test_import_octavo_loads_nothing_heavy() -> None:
    names = (*HEAVY, "octavo.client.messaging.sync.client", "asyncio")
    assert loaded_after("import octavo", names) == []


def test_the_sdk_loads_neither_arrow_nor_server_parts() -> None:
    names = ("pyarrow", "pydantic", "kazoo", "rocksdict", "uvloop", "structlog", "octavo.serving")
    assert loaded_after("from octavo import Client, AsyncClient", names) == []


def test_a_server_that_starts_loads_no_arrow() -> None:
    """Brokers are started by failures, too: Arrow and numpy were a third of what a start costs."""
    code = "import octavo.serving.process, octavo.bookie.process, octavo.supervisor.serve"
    assert loaded_after(code, ("pyarrow", "numpy", "pandas", "pyspark")) == []


def test_public_names_are_sorted_and_exist() -> None:
    for module in (octavo, messaging):
        assert list(module.__all__) == sorted(module.__all__)
        for name in module.__all__:
            assert getattr(module, name).__doc__
    assert not hasattr(octavo, "NoSuchName")
