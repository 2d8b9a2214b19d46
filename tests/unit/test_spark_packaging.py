"""What Spark's workers import, and how Spark finds the format (spec spark §14.6)."""

from __future__ import annotations

import glob
import os
import pathlib
import pickle
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from typing import Any, cast

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

import pyspark_octavo
from octavo.spark.source import OctavoSource
from tests.tidy_rules import ROOT

CLIENTS = {"octavo.client.ledger", "octavo.client.messaging", "octavo.client.segments"}
HEAVY = {"pyarrow", "grpc", "lz4", "asyncio", "google.protobuf", "octavo.serving", *CLIENTS}


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_source_module_is_light() -> None:
    """Every worker imports it before it knows whether it reads files or ledgers."""
    assert not loaded_by("octavo.spark.source") & HEAVY


def test_reading_files_loads_no_client() -> None:
    assert not loaded_by("octavo.spark.reading") & {"grpc", "octavo.serving", *CLIENTS}


def test_reading_ledgers_loads_no_sdk() -> None:
    """Workers talk to bookies only; a broker is asked by whoever plans."""
    assert not {name for name in loaded_by("octavo.spark.ledger_reading") if "messaging" in name}


def test_spark_finds_the_format_by_the_name_of_its_module() -> None:
    found = [m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_")]
    assert "pyspark_octavo" in found
    assert pyspark_octavo.DefaultSource is OctavoSource
    assert pyspark_octavo.DefaultSource.name() == "octavo"


def pickled(carried: object) -> bytes:
    return cast("bytes", cast("Any", cloudpickle).dumps(carried))


def reader() -> object:
    schema = StructType([StructField("offset", LongType())])
    return OctavoSource({"path": "lake", "subscribe": "t"}).reader(schema)


@pytest.mark.parametrize("carried", [lambda: OctavoSource, reader], ids=["class", "reader"])
def test_a_worker_without_octavo_names_its_interpreter_and_the_setting(
    carried: Callable[[], object], tmp_path: pathlib.Path
) -> None:
    """What Spark's worker unpickles, in an interpreter that has pyspark only, as Spark ships it."""
    venv = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path)]
    subprocess.run(venv, check=True, timeout=180)
    python = tmp_path / "bin" / "python3"
    archives = sorted(pathlib.Path(pyspark.__path__[0], "python", "lib").glob("*.zip"))
    assert archives
    done = subprocess.run(
        [python, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"],
        input=pickled(carried()),
        env={**os.environ, "PYTHONPATH": ":".join(map(str, archives))},
        capture_output=True,
        timeout=180,
        check=False,
    )
    said = done.stderr.decode().splitlines()[-1]
    assert said.startswith(f"ImportError: Spark's Python worker runs {python} ")
    assert "No module named 'octavo'" in said
    assert "PYSPARK_PYTHON" in said


def test_a_worker_with_octavo_gets_the_class_itself() -> None:
    assert pickle.loads(pickled(OctavoSource)) is OctavoSource  # noqa: S301 - our own bytes


def test_a_zip_is_enough_where_the_other_packages_are(tmp_path: pathlib.Path) -> None:
    """What `spark-submit --py-files octavo.zip` gives workers: nothing of ours asks for a file."""
    made = tmp_path / "octavo.zip"
    sources = ROOT / "src"
    packed = [str(sources / "pyspark_octavo.py")]
    packed += glob.glob(f"{sources}/octavo/**/*.py", recursive=True)
    with zipfile.ZipFile(made, "w") as archive:
        for path in packed:
            archive.write(path, pathlib.Path(path).relative_to(sources))
    others = [path for path in sys.path if path.endswith("site-packages")]
    code = """
import pkgutil, octavo
assert ".zip" in octavo.__file__, octavo.__file__
from octavo.spark import exactly_once, live_reading, last_rows, sink, source, stream_live
assert "pyspark_octavo" in {m.name for m in pkgutil.iter_modules()}
import pyspark_octavo
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],  # -S: no packages but those of PYTHONPATH
        env={**os.environ, "PYTHONPATH": ":".join([str(made), *others])},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert not done.returncode, done.stderr
