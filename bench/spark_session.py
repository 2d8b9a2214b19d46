"""One Spark session for measuring, and what its jobs cost: its own processes and nothing else."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.fix_spark import SPARK_CONFIG


def session(extra: Mapping[str, str] | None = None) -> SparkSession:
    """A `local[2]` session with both JIT compilers; the workers run this interpreter."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.Builder()
    config = {**SPARK_CONFIG, "spark.driver.extraJavaOptions": "-XX:+UseSerialGC", **(extra or {})}
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class SparkProcesses:
    """The JVM of a local session and the Python workers that it started.

    Neither this process, which only asks, nor the servers that are read from.
    """

    def __init__(self, spark: SparkSession) -> None:
        gateway = spark.sparkContext._gateway
        self._jvm = psutil.Process(int(gateway.proc.pid))  # type: ignore[union-attr]

    def cpu_s(self) -> tuple[float, float]:
        """User and system time so far: of the JVM, and of Python, workers that ended included."""
        own = self._jvm.cpu_times()
        python = own.children_user + own.children_system
        for child in self._jvm.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                used = child.cpu_times()
                python += used.user + used.system + used.children_user + used.children_system
        return own.user + own.system, python


class Stages:
    """What Spark's own status says of the stages since it was last asked."""

    def __init__(self, spark: SparkSession) -> None:
        self._store = spark.sparkContext._jsc.sc().statusStore()  # type: ignore[union-attr]
        self._next = 0
        self.executor_s()

    def executor_s(self) -> float:
        """`executorRunTime` of all tasks added up; two at the same time count twice."""
        total_ms = 0
        while True:
            try:
                total_ms += self._store.lastStageAttempt(self._next).executorRunTime()
            except Py4JJavaError:
                return total_ms / 1000
            self._next += 1
