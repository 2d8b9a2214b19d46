"""What a sink sends is stored once, over owners and over time (ADR 67, I2, I9)."""

from __future__ import annotations

import pytest

from octavo.proto.kept_producers import kept_id
from octavo.runtime.errors import InvalidProducerEpoch, OutOfOrderSequence
from octavo.runtime.errors_of_writers import SinkLimitReached
from octavo.serving.partition import shell
from octavo.serving.partition.producers import ProducerStates
from tests.serving_rig import NAME, Rig, make_batch, produce

SINK = kept_id(9)


def sent(epoch: int, sequence: int, *values: bytes) -> bytes:
    return make_batch(values, pid=SINK, epoch=epoch, sequence=sequence)


async def test_a_publication_may_be_repeated_at_every_later_owner(rig: Rig) -> None:
    first = await rig.broker().open(NAME)
    assert (await produce(first, sent(0, 0, b"a", b"b"))).base_offset == 0
    assert (await produce(first, sent(0, 2, b"c"))).base_offset == 2
    second = await rig.broker().open(NAME)
    for sequence, values in ((0, (b"a", b"b")), (2, (b"c",))):
        assert (await produce(second, sent(0, sequence, *values))).duplicate
    assert (await produce(second, sent(1, 0, b"next batch"))).base_offset == 3
    third = await rig.broker().open(NAME)
    assert (await produce(third, sent(1, 0, b"next batch"))).duplicate
    with pytest.raises(InvalidProducerEpoch):
        await produce(third, sent(0, 0, b"a", b"b"))
    assert third.high_watermark == 4


async def test_the_middle_of_a_publication_is_not_taken_where_its_begin_is_not_known(
    rig: Rig,
) -> None:
    """An ordinary producer that nobody knows may begin anywhere (I2)."""
    owner = await rig.broker().open(NAME)
    with pytest.raises(OutOfOrderSequence):
        await produce(owner, sent(0, 5, b"f"))
    assert owner.high_watermark == 0


async def test_a_partition_refuses_one_sink_too_many(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_none(**settings: int) -> ProducerStates[object]:
        return ProducerStates(**settings, kept_max=0)

    monkeypatch.setattr(shell, "ProducerStates", of_none)
    owner = await rig.broker().open(NAME)
    with pytest.raises(SinkLimitReached, match="no more can"):
        await produce(owner, sent(0, 0, b"a"))
    assert (await produce(owner, make_batch([b"other"]))).base_offset == 0
