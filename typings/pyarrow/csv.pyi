# The part of pyarrow.csv that Octavo's demo uses.
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from pyarrow import BufferReader, DataType, Table

class ConvertOptions:
    def __init__(
        self,
        *,
        column_types: Mapping[str, DataType] | None = ...,
        null_values: Sequence[str] | None = ...,
        strings_can_be_null: bool = ...,
    ) -> None: ...

def read_csv(
    input_file: str | BinaryIO | BufferReader, *, convert_options: ConvertOptions | None = ...
) -> Table: ...
