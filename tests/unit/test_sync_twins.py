"""Both flavours of the SDK have the same names, arguments and texts, whoever wrote them."""

from __future__ import annotations

import inspect

import pytest

from octavo import (
    Admin,
    AsyncAdmin,
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    Client,
    Consumer,
    Producer,
    Reader,
)
from tools import gen_sync
from tools.gen_sync import TWINS, in_blocking_words

PAIRS: list[tuple[type, type]] = [
    (AsyncAdmin, Admin),
    (AsyncClient, Client),
    (AsyncConsumer, Consumer),
    (AsyncProducer, Producer),
    (AsyncReader, Reader),
]
INSIDE: dict[str, frozenset[str]] = {
    **{twin.name: twin.inside for twin in TWINS},
    "AsyncProducer": frozenset({"engine"}),
    "AsyncReader": frozenset(name for twin in TWINS for name in twin.inside),
}
OTHER_WORDS = {
    "AsyncClient.close": "a close that is cancelled has no blocking twin",
    "AsyncConsumer.close": "the blocking one waits for its thread, so its timeout counts",
    "AsyncProducer.send_nowait": "the blocking one waits for memory",
}
"""Methods whose texts differ on purpose, and why."""


def names_of(kind: type) -> set[str]:
    """What a user may call, attributes of instances left out."""
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_flavours_have_the_same_names(theirs: type, ours: type) -> None:
    assert names_of(theirs) - INSIDE[theirs.__name__] == names_of(ours)


def methods() -> list[tuple[str, object, object]]:
    return [
        (f"{theirs.__name__}.{name}", inspect.getattr_static(theirs, name), getattr(ours, name))
        for theirs, ours in PAIRS
        for name in sorted(names_of(ours))
        if callable(getattr(ours, name))
    ]


METHODS = methods()
NAMES = [name for name, _, _ in METHODS]


@pytest.mark.parametrize(("name", "theirs", "ours"), METHODS, ids=NAMES)
def test_both_flavours_take_the_same(name: str, theirs: object, ours: object) -> None:
    assert callable(theirs)
    assert callable(ours)
    wanted, found = inspect.signature(theirs), inspect.signature(ours)
    assert in_blocking_words(str(wanted)) == str(found)


@pytest.mark.parametrize(("name", "theirs", "ours"), METHODS, ids=NAMES)
def test_both_flavours_say_the_same(name: str, theirs: object, ours: object) -> None:
    said = in_blocking_words(inspect.getdoc(theirs) or "")
    if name.replace("Reader", "Consumer") in OTHER_WORDS or name in OTHER_WORDS:
        assert said != inspect.getdoc(ours), "the same after all: take it off the list"
    else:
        assert said == inspect.getdoc(ours)


async def test_the_admin_of_a_client_is_one_object_and_nobody_puts_another_in_its_place() -> None:
    blocking, client = Client("localhost:1"), AsyncClient("localhost:1")
    for one in (blocking, client):
        assert one.admin is one.admin
        with pytest.raises(AttributeError, match="no setter"):
            one.admin = None  # type: ignore[misc,assignment]  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(AttributeError, match="no deleter"):
            del one.admin  # pyright: ignore[reportAttributeAccessIssue]
    blocking.close()
    await client.close()


def test_a_method_in_by_hand_is_not_written_and_all_others_are() -> None:
    hand = gen_sync.by_hand()
    for twin in TWINS:
        text = (gen_sync.SYNC / f"{twin.module}.py").read_text(encoding="utf-8")
        for name in hand.get(twin.bases[0], ()):
            assert f"def {name}(" not in text


def test_an_iterable_of_the_user_is_walked_in_the_callers_thread() -> None:
    text = (gen_sync.SYNC / "consumer.py").read_text(encoding="utf-8")
    assert "self._async.assign(list(partitions))" in text
