"""Names and SQL types of the columns of `includeMetadata`: where a record is stored, who sent it.

Import-light, as `octavo.spark.source` is.
"""

from __future__ import annotations

from collections.abc import Mapping

METADATA_COLUMNS: Mapping[str, str] = {
    "ledgerId": "bigint",
    "entryId": "bigint",
    "batchIndex": "int",
    "eventTime": "timestamp",
    "producer": "string",
    "sequence": "bigint",
    "schemaId": "int",
}
