# The part of pyarrow.parquet that Octavo uses.
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import BinaryIO, Self

from pyarrow import NativeFile, RecordBatch, Schema, Table

class ParquetWriter:
    def __init__(
        self,
        where: str | NativeFile | BinaryIO,
        schema: Schema,
        *,
        compression: str = ...,
        version: str = ...,
        write_page_checksum: bool = ...,
    ) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...
    def close(self) -> None: ...

class ParquetFile:
    def __init__(
        self, source: str | os.PathLike[str] | NativeFile | BinaryIO, *, memory_map: bool = ...
    ) -> None: ...
    def iter_batches(
        self,
        *,
        batch_size: int = ...,
        columns: Sequence[str] | None = ...,
        use_threads: bool = ...,
    ) -> Iterator[RecordBatch]: ...
    def read_row_group(
        self, i: int, columns: Sequence[str] | None = ..., *, use_threads: bool = ...
    ) -> Table: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None: ...
