"""What Spark's workers import, and how Spark finds the format (spec spark §14.6)."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pyspark_octavo
from octavo.spark.source import OctavoSource

HEAVY = ("pyarrow", "grpc", "lz4", "asyncio", "google.protobuf", "octavo.client", "octavo.serving")


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_source_module_is_light() -> None:
    """Every worker imports it before it knows whether it reads files or ledgers."""
    assert not loaded_by("octavo.spark.source") & set(HEAVY)


def test_reading_files_loads_no_client() -> None:
    assert not loaded_by("octavo.spark.reading") & {"grpc", "octavo.client", "octavo.serving"}


def test_spark_finds_the_format_by_the_name_of_its_module() -> None:
    found = [m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_")]
    assert "pyspark_octavo" in found
    assert pyspark_octavo.DefaultSource is OctavoSource
    assert pyspark_octavo.DefaultSource.name() == "octavo"
