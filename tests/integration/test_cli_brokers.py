"""`octavo brokers …` against a real broker in this process: what it prints, says and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from octavo import Client
from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.runtime.errors import InvalidRequest
from tests.group_cluster import GroupCluster


class Done(NamedTuple):
    code: int
    out: str
    err: str


Octavo = Callable[..., Done]


@pytest.fixture
def found() -> Iterator[GroupCluster]:
    made = GroupCluster(brokers=2)
    while len(made.client.admin.list_brokers()) < 2:
        pass
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def octavo(
    found: GroupCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Octavo:
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", found.bootstrap)

    def call(*words: str) -> Done:
        code = run(["brokers", *words])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


def test_brokers_are_listed_with_their_state(found: GroupCluster, octavo: Octavo) -> None:
    rows = json.loads(octavo("list", "-o", "json").out)
    assert [row["state"] for row in rows] == ["serving"] * len(rows)
    assert {row["address"] for row in rows} == set(found.bootstrap.split(","))
    columns = ["BROKER", "STATE", "BUNDLES", "LOAD PERCENT", "BYTES IN PER S", "BYTES OUT PER S"]
    heading = octavo("list").out.splitlines()[0]
    assert (
        heading.split()
        == " ".join([*columns, "RECORDS IN PER S", "HOTTEST", "HOTTEST PERCENT", "ADDRESS"]).split()
    )
    assert {row["load_percent"] for row in rows} == {None}  # not known yet is not idle


def test_a_name_that_nobody_has_is_refused_with_those_that_are_known(octavo: Octavo) -> None:
    done = octavo("drain", "brokr-1")
    assert done.code == ExitCode.ERROR, done
    assert "no broker is called 'brokr-1'" in done.err
    assert octavo("undrain", "nobody").code == ExitCode.ERROR
    assert octavo("drain").code == ExitCode.USAGE


def test_the_last_broker_is_not_drained_and_undraining_what_is_not_drained_is_fine(
    found: GroupCluster, octavo: Octavo
) -> None:
    names = [row["broker"] for row in json.loads(octavo("list", "-o", "json").out)]
    for name in names[:-1]:
        assert octavo("drain", name).err == f"{name} is drained\n"
    done = octavo("drain", names[-1], "--no-wait")
    assert "last broker that may serve" in done.err
    with Client(found.bootstrap) as client:
        states = {one.broker_id: one.state for one in client.admin.list_brokers()}
        assert states == {**dict.fromkeys(names[:-1], "drained"), names[-1]: "serving"}
        with pytest.raises(InvalidRequest, match="last broker"):
            client.admin.drain_broker(names[-1])
        for name in names:
            client.admin.undrain_broker(name)
    assert octavo("undrain", names[0]).err == f"{names[0]} may serve partitions\n"


def test_a_bundle_is_unloaded_by_its_number_or_by_a_partition_in_it(
    found: GroupCluster, octavo: Octavo
) -> None:
    admin = found.client.admin
    admin.create_topic("orders-2", partitions=4)
    with found.client.producer() as producer:
        for partition in range(4):
            producer.send("orders-2", b"a", partition=partition)
    bundle = admin.find_bundle("orders-2", 3)
    names = {one.broker_id for one in admin.list_brokers()}
    (other,) = names - {bundle.owner_id}
    assert octavo("unload", "orders-2-3").err == f"bundle {bundle.bundle} is served by {other}\n"
    rows = json.loads(octavo("bundles", "-o", "json").out)
    moved = (bundle.bundle, other, other)
    for found_rows in (rows, json.loads(octavo("bundles", other, "-o", "json").out)):
        assert moved in [(row["bundle"], row["owner"], row["moved_to"]) for row in found_rows]
    assert all(row["moved_to"] == "" for row in rows if row["bundle"] != bundle.bundle)
    back = octavo("unload", str(bundle.bundle), "--to", bundle.owner_id)
    assert back.err == f"bundle {bundle.bundle} is served by {bundle.owner_id}\n"
    idle = next(n for n in range(64) if n not in {row["bundle"] for row in rows})
    done = octavo("unload", str(idle), "--to", other)
    assert done.err == f"bundle {idle} is for {other}, once somebody asks for it\n"


def test_what_cannot_be_unloaded_is_said_with_what_can(octavo: Octavo) -> None:
    for wrong in ("orders", "-3", "orders-x", ""):
        assert octavo("unload", "--", wrong).code == ExitCode.USAGE, wrong
    done = octavo("unload", "99999")
    assert done.code == ExitCode.ERROR
    assert "there is no bundle 99999" in done.err
    assert "from 0 to 63" in done.err
    assert "does not exist" in octavo("unload", "nothing-0").err
    assert "no broker is called" in octavo("unload", "0", "--to", "nobody").err
