"""The metadata of a local cluster for a tool, whether the cluster runs or not.

Of one that is down the data folder is locked for as long as the tool works, and its metadata are
served on a free port of the loopback interface: nobody else is told of it.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from octavo.metadata.connect import parse_url
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.runtime.address import join_address
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError
from octavo.supervisor.cluster_file import ClusterFile, is_same_process
from octavo.supervisor.layout import METADATA_FOLDER
from octavo.supervisor.lock import DataDirLock


@asynccontextmanager
async def metadata_url_of(
    cluster: ClusterFile, data_dir: pathlib.Path, *, clock: Clock, entropy: Entropy
) -> AsyncGenerator[str]:
    """Where the metadata of the cluster in `data_dir` can be reached, while this lasts.

    Raises IllegalStateError when the folder is in use by something that is no running cluster,
    MetadataCorrupt and StorageFailed as the embedded store does.
    """
    url = parse_url(cluster.metadata)
    if url.scheme != "embedded" or cluster.supervisor_alive():
        yield cluster.metadata
        return
    left = [c.name for c in cluster.children if c.pid and is_same_process(c.pid, c.started)]
    if left:
        raise IllegalStateError(
            f"the supervisor is gone, and of its processes run still: {', '.join(left)}",
            hint=f"`octavo up --data {data_dir}` ends them; then `octavo down`",
        )
    lock = DataDirLock(data_dir)
    await asyncio.to_thread(lock.acquire)
    try:
        server = EmbeddedMetadataServer(data_dir / METADATA_FOLDER, clock, entropy=entropy)
        try:
            port = await server.start(clients_are_dead=True)
            yield f"embedded://{join_address('127.0.0.1', port)}{url.root}"
        finally:
            await server.stop()
    finally:
        lock.release()
