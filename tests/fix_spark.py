"""Fixtures: one Spark session per test process (spec spark §10).

Starting a session costs about 8 seconds and 0.4 GB; tests share it and mark themselves `spark`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
SPARK_CONFIG = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.python.unix.domain.socket.enabled": "true",
    # C1 only: halves the start of short tests, slows heavy jobs.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


def java_problem() -> str | None:
    """Why Spark cannot run here, None when it can."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        return "no java found: Spark tests need Java 17 (Debian: openjdk-17-jre-headless)"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        return (
            f"Spark tests need Java {JAVA_VERSION_MIN} or newer, {java} says: {said.strip()[:80]}"
        )
    return None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session; fails with one clear line when Java is missing."""
    problem = java_problem()
    if problem is not None:
        pytest.fail(problem, pytrace=False)
    from pyspark.sql import SparkSession

    # Workers otherwise take `python3` from PATH, which knows neither pyarrow nor Octavo.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.Builder()
    for key, value in SPARK_CONFIG.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
