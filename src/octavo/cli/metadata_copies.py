"""`octavo metadata backup` and `restore`: copies of a cluster's metadata.

They work on a running cluster's store, and on the folder of a local cluster that is down.
"""

from __future__ import annotations

import asyncio
import datetime
import pathlib
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from octavo import __version__
from octavo.cli.bookies import StoreOption
from octavo.cli.failures import ExitCode
from octavo.cli.folder import DEFAULT_DATA, DataOption, require_cluster
from octavo.cli.output import count_of, note
from octavo.cli.progress import Progress
from octavo.cli.stopping import terminable
from octavo.runtime.errors import ConfigError

if TYPE_CHECKING:
    from octavo.metadata.backup import Copied
    from octavo.metadata.backup_file import BackupFile
    from octavo.metadata.paths import Paths
    from octavo.metadata.restore import Restored
    from octavo.metadata.store import MetadataStore

app = typer.Typer(help="Copy the metadata of a cluster, and put a copy back.")
FileArgument = Annotated[pathlib.Path, typer.Argument(help="The file of the copy.")]


@app.callback()
def _metadata() -> None:
    """Copy the metadata of a cluster, and put a copy back."""


@app.command()
def backup(
    file: FileArgument,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of a file that exists.")
    ] = False,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
) -> int:
    """Write a copy of the metadata to a file: what it was at one moment, also of a running cluster.

    It is read until two readings found the same, and named only once it is whole and on the disk.
    The records themselves are not in it: they are on the bookies.
    """
    # Imported here: loads the metadata stores.
    from octavo.metadata.backup import back_up
    from octavo.runtime.clock import SystemClock

    path = file.absolute()
    if path.exists() and not replace:
        raise ConfigError(f"{file} exists already", hint="another name, or --replace")
    read = (1, 0)

    def tell(number: int, keys: int) -> None:
        nonlocal read
        read = (number, keys)
        progress.show()

    async def run() -> Copied:
        async with _store(metadata, data.absolute()) as (store, paths):
            return await back_up(
                store,
                paths,
                path,
                clock=SystemClock(),
                release=__version__,
                replace=replace,
                on_read=tell,
            )

    with terminable(), Progress(lambda _s: f"reading {read[0]}: {read[1]} keys") as progress:
        done = asyncio.run(run())
    note(
        f"{file}: {count_of(done.keys, 'key')}, {done.nbytes} bytes, of cluster "
        f"{done.head.cluster_id}, epoch {done.head.epoch}, read {done.passes} times"
    )
    return ExitCode.OK


@app.command()
def restore(
    file: FileArgument,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove what the store has of this cluster first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    metadata: StoreOption = None,
    data: DataOption = DEFAULT_DATA,
) -> int:
    """Put a copy of the metadata back, while no server runs.

    What was made since the copy is not found any more: topics, settings, records. No id that was
    given out since comes again. Bookies delete nothing that the copy does not know until an
    operator says so. Cut short, the same command goes on; until then no server starts.
    """
    # Imported here: loads the metadata stores.
    from octavo.metadata.restore import restore as put_back
    from octavo.runtime.clock import SystemClock
    from octavo.runtime.entropy import SystemEntropy

    copy = _whole(file)
    if not yes:
        what = f"{count_of(copy.keys, 'key')} of cluster {copy.head.cluster_id}"
        if not sys.stdin.isatty():
            raise ConfigError(
                f"nothing was restored; {file} holds {what}", hint="add --yes to do it"
            )
        typer.confirm(f"Make the metadata what {file} holds, {what}?", abort=True, err=True)
    written = (0, 0)

    def tell(done: int, of: int) -> None:
        nonlocal written
        written = (done, of)
        progress.show()

    async def run() -> Restored:
        async with _store(metadata, data.absolute()) as (store, paths):
            return await put_back(
                store,
                paths,
                file.absolute(),
                clock=SystemClock(),
                entropy=SystemEntropy(),
                replace=replace,
                on_write=tell,
            )

    with terminable(), Progress(lambda _s: f"{written[0]} of {written[1]} keys") as progress:
        done = asyncio.run(run())
    made = datetime.datetime.fromtimestamp(done.head.made_ms / 1000, tz=datetime.UTC)
    note(
        f"restored {count_of(done.keys, 'key')} of cluster {done.head.cluster_id}, copied "
        f"{made:%Y-%m-%d %H:%M:%S} UTC; ids go on in epoch {done.epoch}"
    )
    for line in _next_steps(metadata, data):
        note(line)
    return ExitCode.OK


def _whole(file: pathlib.Path) -> BackupFile:
    """The copy, read to its end before anybody is asked or anything is changed."""
    from octavo.metadata.backup_file import BackupFile

    try:
        return BackupFile.opened(file.absolute())
    except (FileNotFoundError, IsADirectoryError) as error:
        error.add_note("name the file of a copy: `octavo metadata backup FILE` writes one")
        raise


def _next_steps(metadata: str | None, data: pathlib.Path) -> list[str]:
    """What the operator does now, in words that can be typed."""
    if metadata is None:
        first = f"octavo up --data {data} --bookie-set accept_older_metadata=true"
    else:
        first = f"octavo bookie --metadata {metadata} ... -X accept_older_metadata=true"
    return [
        f"next: start each bookie once with `{first}`, then as usual: without it those that know "
        "more than the copy refuse to start",
        "then: `octavo verify` says what is missing; bookies delete nothing that the copy does not "
        "know until `octavo ledger collect --accept-missing` (`octavo status` says so)",
    ]


@asynccontextmanager
async def _store(
    metadata: str | None, data: pathlib.Path
) -> AsyncGenerator[tuple[MetadataStore, Paths]]:
    """The store that was named; else that of the cluster in the folder, up or down.

    Of one that is down the folder is locked and its metadata served to nobody but us.
    """
    from octavo.metadata.connect import connect_store, parse_url
    from octavo.metadata.paths import Paths
    from octavo.runtime.clock import SystemClock
    from octavo.runtime.entropy import SystemEntropy
    from octavo.supervisor.folder_store import metadata_url_of

    clock, entropy = SystemClock(), SystemEntropy()
    async with AsyncExitStack() as stack:
        url = metadata
        if url is None:
            serving = metadata_url_of(require_cluster(data), data, clock=clock, entropy=entropy)
            url = await stack.enter_async_context(serving)
        store = await connect_store(
            url, client_name="metadata-copies", clock=clock, entropy=entropy
        )
        stack.push_async_callback(store.close)
        yield store, Paths(parse_url(url).root)
