"""`compact(df)`: the last row of each key of a DataFrame, as a window that Spark distributes.

Imports pyspark when it is called: `octavo.spark` is imported by workers and by exports as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = ("topic", "partition", "key", "offset")
_RANK = "__octavo_rank"


def compact(
    df: DataFrame, *, drop_tombstones: bool = False, across_partitions: bool = False
) -> DataFrame:
    """The last row of each key, and all rows that have no key.

    Last is the one with the greatest offset among those of its topic, partition and key. For reads
    of few partitions with many records the option `compacted` of the source does the same before
    rows reach Spark; this distributes the work by key, whatever the partitions.

    Args:
        df: a batch (or one batch of a stream, in `foreachBatch`) with the columns `topic`,
            `partition`, `key` and `offset` of the source, and any others.
        drop_tombstones: leave out keys whose last row has no `value`.
        across_partitions: a key counts once in a topic, not once in each partition: the row with
            the greatest `timestamp` is its last, then that with the greatest partition and offset.
            For topics that got more partitions, or whose producers choose partitions themselves;
            as right as the clocks of the producers.

    Raises:
        ConfigError: a column is missing, or `df` is a stream.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    needed = [*_PLACE]
    needed += ["value"] if drop_tombstones else []
    needed += ["timestamp"] if across_partitions else []
    missing = [name for name in needed if name not in df.columns]
    if missing:
        raise ConfigError(
            f"compact(df) needs column {missing[0]!r}, the DataFrame has {', '.join(df.columns)}",
            hint="select it too, or name it in .schema(...)",
        )
    if df.isStreaming:
        raise ConfigError(
            "compact(df) cannot know the last row of a key of a stream",
            hint="call it in foreachBatch",
        )
    # A row without a key is a group of its own. So the condition on the rank stands alone, and
    # Spark cuts each group to one row before the shuffle (WindowGroupLimit).
    own = [F.when(F.col("key").isNull(), F.col(name)) for name in ("partition", "offset")]
    if across_partitions:
        latest = [F.desc("timestamp"), F.desc("partition"), F.desc("offset")]
        window = Window.partitionBy("topic", "key", *own).orderBy(*latest)
    else:
        window = Window.partitionBy("topic", "partition", "key", own[1]).orderBy(F.desc("offset"))
    ranked = df.withColumn(_RANK, F.row_number().over(window))
    last = ranked.where(F.col(_RANK) == 1).drop(_RANK)
    if drop_tombstones:
        last = last.where(F.col("value").isNotNull() | F.col("key").isNull())
    return last
