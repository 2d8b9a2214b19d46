"""The package as users get it: built, installed in fresh environments, used without the repository.

Needs a package index, as `make setup` does. Each Python that is here and that the package names is
tried: from PATH, or a version that pyenv installed.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo.testing import LocalCluster
from tests.tidy_rules import ROOT

pytestmark = [pytest.mark.process, pytest.mark.wheel, pytest.mark.timeout(600)]

OTHER_PYTHONS = ("3.12", "3.13")
SDK_PACKAGES = {
    "crc32c",
    "grpcio",
    "lz4",
    "octavo",
    "protobuf",
    "pyarrow",
    "typing_extensions",
    "uvloop",
}
COMMAND_TIMEOUT_S = 400.0


class Environment:
    """A fresh virtual environment and a clean folder to work in."""

    def __init__(self, folder: pathlib.Path, python: str) -> None:
        self.folder = folder
        self.home = folder / "venv"
        folder.mkdir(parents=True)
        kept = ("PATH", "HOME", "LANG", "JAVA_HOME", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "TMPDIR")
        self.variables = {name: os.environ[name] for name in kept if name in os.environ}
        self.run(python, "-m", "venv", str(self.home))
        self.variables["PATH"] = f"{self.home / 'bin'}:{self.variables.get('PATH', '')}"

    def run(self, *words: str, expect: int = 0) -> str:
        """Run a command in the folder; what it printed, both streams, if it ended as expected."""
        done = subprocess.run(
            list(words),
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == expect, f"{' '.join(words)}\n{done.stdout}"
        return done.stdout

    def shell(self, line: str, *, expect: int = 0) -> str:
        """Run a line as a person types it."""
        return self.run("bash", "-o", "pipefail", "-c", line, expect=expect)

    def install(self, *wanted: str) -> None:
        """Install with pip, quietly."""
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", *wanted)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel, built from the sdist, built from the files under version control."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert len(list(out.glob("*.tar.gz"))) == 1
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def everything(
    wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    """An environment with servers and Spark, and a running cluster in its folder."""
    made = Environment(tmp_path_factory.mktemp("everything") / "work", sys.executable)
    made.install(f"{wheel}[server,spark]")
    made.shell("octavo up --port 0 --data q --detach")
    yield made
    made.shell("octavo down --data q")


def address_of(made: Environment) -> str:
    """The broker's address of the cluster in the folder `q`."""
    text = (made.folder / "q" / "cluster.json").read_text()
    found: str = next(
        child["address"] for child in json.loads(text)["children"] if child["role"] == "broker"
    )
    return found


def use_it(made: Environment, address: str) -> None:
    """The main job, line by line."""
    made.variables["OCTAVO_BOOTSTRAP_SERVERS"] = address
    made.shell("octavo topic create orders --partitions 2")
    made.shell("""printf '{"id":1}\\n{"id":2}\\n' | octavo produce orders --key-json id""")
    assert made.shell("octavo consume orders --from start -n 2").count('"id"') == 2
    made.shell("octavo export orders --to lake --roll")


def test_installed_without_the_repository(everything: Environment) -> None:
    address = address_of(everything)
    use_it(everything, address)
    where = everything.run("python", "-c", "import octavo; print(octavo.__file__)")
    assert str(everything.home) in where
    files = everything.run(
        "python",
        "-c",
        "import pyarrow.dataset as d; print(d.dataset('lake/orders', format='ipc').count_rows())",
    )
    assert files.split() == ["2"]
    (everything.folder / "job.py").write_text(SPARK_JOB)
    counted = everything.run("python", "job.py", address)
    assert counted.splitlines()[-1] == "live 2 files 2"


SPARK_JOB = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
source = spark.read.format("octavo").option("subscribe", "orders")
live = source.option("octavo.bootstrap.servers", sys.argv[1]).load().count()
source = spark.read.format("octavo").option("subscribe", "orders")
files = source.option("path", "lake").load().count()
spark.stop()
print("live", live, "files", files)
"""


def python_of(version: str) -> str | None:
    """An interpreter of that version on this machine."""
    on_path = shutil.which(f"python{version}")
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    candidates = [str(p) for p in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    for path in [*([on_path] if on_path else []), *candidates]:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if said.stdout.startswith(f"Python {version}."):
            return path
    return None


@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_other_pythons(wheel: pathlib.Path, tmp_path: pathlib.Path, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on PATH or in pyenv")
    made = Environment(tmp_path / "work", python)
    made.install(f"{wheel}[server]")
    made.shell("octavo up --port 0 --data q --detach")
    try:
        use_it(made, address_of(made))
    finally:
        made.shell("octavo down --data q")


@pytest.fixture(scope="module")
def sdk_alone(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with nothing but the package and what it requires."""
    made = Environment(tmp_path_factory.mktemp("sdk") / "work", sys.executable)
    made.install(str(wheel))
    return made


def test_the_sdk_alone_needs_few_packages_and_works(
    sdk_alone: Environment, shared_cluster: LocalCluster
) -> None:
    listed = json.loads(
        sdk_alone.run("pip", "list", "--format", "json", "--disable-pip-version-check")
    )
    assert {each["name"] for each in listed} - {"pip", "setuptools"} == SDK_PACKAGES
    (sdk_alone.folder / "use.py").write_text(
        "import sys\n"
        "from octavo import Client\n"
        "with Client(sys.argv[1]) as client:\n"
        "    client.admin.create_topic('from-the-wheel', partitions=1)\n"
        "    with client.producer() as producer:\n"
        "        producer.send('from-the-wheel', b'paid', key=b'k')\n"
        "    with client.reader('from-the-wheel') as reader:\n"
        "        print([record.value for record in reader.read_to_end()])\n"
    )
    said = sdk_alone.run("python", "use.py", shared_cluster.bootstrap_servers)
    assert said.splitlines()[-1] == "[b'paid']"


def test_what_is_not_installed_is_named(sdk_alone: Environment) -> None:
    said = sdk_alone.run("octavo", "topic", "list", expect=1)
    assert said.splitlines() == [
        "error: this needs the package typer",
        "hint: pip install 'octavo[cli]'",
    ]


MISUSES = """
import octavo
from octavo import AsyncClient, Client, Consumer, Producer, Reader, SendFuture, TopicPartition
from octavo import Cleint  # misuse

octavo.Produce  # misuse
Client("localhost", client_idd="me")  # misuse
AsyncClient("localhost", request_timeout_ms="5s")  # misuse


def names(client: Client, producer: Producer, reader: Reader, consumer: Consumer) -> None:
    client.producr()  # misuse
    client.admin.create_topic(b"orders")  # misuse
    client.admin.create_topic("orders", partitions="6")  # misuse
    client.admin.list_offsets("orders", "newest")  # misuse
    reader.read_to_ende()  # misuse
    consumer.seek("orders", 5)  # misuse
    consumer.poll(max_record=5)  # misuse
    TopicPartition("orders", "0")  # misuse


def options(client: Client, aio: AsyncClient) -> None:
    client.producer(linger_msec=5)  # misuse
    client.producer(linger_ms="5")  # misuse
    client.producer(acks="most")  # misuse
    client.producer(compression_type="zip")  # misuse
    client.producer(serializer="pickle")  # misuse
    aio.producer(batch_size=1.5)  # misuse
    client.consumer("orders", auto_offset_reset=5)  # misuse
    client.consumer("orders", group_id="billing")  # misuse
    aio.consumer("orders", max_poll_record=5)  # misuse
    client.reader("orders", start="first")  # misuse
    aio.reader("orders", linger_ms=5)  # misuse


def order_bytes(order: dict[str, int]) -> bytes:
    return repr(order).encode()


def values(client: Client, producer: Producer, consumer: Consumer) -> None:
    producer.send(b"orders", b"x")  # misuse
    producer.send("orders")  # misuse
    producer.send("orders", 5)  # misuse
    producer.send("orders", {"id": 1})  # misuse
    producer.send("orders", b"x", key=5)  # misuse
    producer.send("orders", b"x", partition="0")  # misuse
    producer.send("orders", b"x", headers="trace")  # misuse
    producer.send("orders", b"x", headers=[("trace", 1)])  # misuse
    producer.send("orders", b"x", headers=[b"trace"])  # misuse
    producer.send("orders", b"x", headers={1: b"x"})  # misuse
    producer.send("orders", b"x", timestamp_ms="now")  # misuse
    producer.send_many("orders", [1, 2])  # misuse
    producer.send_many("orders", [b"x"], keys=[1.5])  # misuse
    client.producer(serializer=order_bytes).send("orders", ["x"])  # misuse
    future: SendFuture = producer.send("orders", b"x")  # misuse
    producer.send_nowait("orders", b"x").result(timeout="10")  # misuse
    producer.send("orders", b"x").ofset  # misuse
    producer.flush(timeout="soon")  # misuse
    for record in consumer:
        record.vaule  # misuse
        record.offset.upper()  # misuse
        record.value.decode()  # misuse
"""


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_find_every_misuse(sdk_alone: Environment, checker: str) -> None:
    path = sdk_alone.folder / "misuses.py"
    path.write_text(MISUSES)
    marked = [n for n, line in enumerate(MISUSES.splitlines(), 1) if "# misuse" in line]
    assert len(marked) >= 20
    python = str(sdk_alone.home / "bin" / "python")
    tools = pathlib.Path(sys.executable).parent
    if checker == "mypy":
        command = [str(tools / "mypy"), "--python-executable", python, "--strict", path.name]
    else:
        command = [str(tools / "pyright"), "--pythonpath", python, path.name]
    said = sdk_alone.run(*command, expect=1)
    lines = {
        int(line.split(".py:")[1].split(":")[0])
        for line in said.splitlines()
        if ".py:" in line and "error" in line
    }
    assert lines == set(marked), said
