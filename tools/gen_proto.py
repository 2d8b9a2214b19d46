"""Regenerate the protobuf and gRPC code in proto/; `--check` fails when the committed code differs.

Run as `python tools/gen_proto.py [--check]` from anywhere; needs the `dev` extra (grpcio-tools,
mypy-protobuf).
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"


def generate(into: pathlib.Path) -> list[pathlib.Path]:
    """Write the generated modules for every proto file below `into`/octavo/proto."""
    staged = into / "octavo" / "proto"
    staged.mkdir(parents=True)
    sources = sorted(PROTO.glob("*.proto"))
    for source in sources:
        shutil.copy(source, staged / source.name)
    plugins = pathlib.Path(sys.executable).parent
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{into}",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--python_out={into}",
        f"--grpc_python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--mypy_grpc_out=quiet:{into}",
        *(f"octavo/proto/{source.name}" for source in sources),
    ]
    subprocess.run(command, check=True, cwd=into)
    return sorted(p for p in staged.iterdir() if "_pb2" in p.name)


def main() -> int:
    """Regenerate, or compare and report the files that differ."""
    check = "--check" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        made = generate(pathlib.Path(folder))
        stale = [
            path.name
            for path in made
            if not (PROTO / path.name).exists()
            or (PROTO / path.name).read_bytes() != path.read_bytes()
        ]
        if check:
            if stale:
                print(f"proto: stale generated code: {', '.join(stale)}; run `make proto`")
                return 1
            return 0
        for path in made:
            shutil.copy(path, PROTO / path.name)
        print(f"proto: {len(made)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
