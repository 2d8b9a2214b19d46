"""`octavo bookie` and `octavo broker`: one server process each, in the foreground."""

from __future__ import annotations

import os
import pathlib
from enum import StrEnum
from typing import Annotated

import typer

from octavo.cli.session import parse_settings
from octavo.runtime.errors import IllegalStateError
from octavo.supervisor.spec import PARENT_PID_VARIABLE

LOG_FORMAT_VARIABLE = "OCTAVO_LOG_FORMAT"


class LogFormatName(StrEnum):
    """How a server writes its log."""

    TEXT = "text"
    JSON = "json"


IdOption = Annotated[str, typer.Option("--id", help="Name of this server, unique in its cluster.")]
MetadataOption = Annotated[
    str,
    typer.Option(
        "--metadata", help="zk://host:2181[,host:port]/octavo or embedded://host:port/octavo"
    ),
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="KEY=VALUE", help="Any other setting of this server; repeatable."),
]
LogLevelOption = Annotated[
    str, typer.Option("--log-level", envvar="OCTAVO_LOG_LEVEL", help="DEBUG, INFO, WARNING, ERROR.")
]

LogFormatOption = Annotated[
    LogFormatName,
    typer.Option(
        "--log-format", envvar=LOG_FORMAT_VARIABLE, help="json: one object a line, for programs."
    ),
]


def bookie(
    bookie_id: IdOption,
    metadata: MetadataOption,
    data: Annotated[pathlib.Path, typer.Option("--data", help="Folder of its journal and index.")],
    index_dir: Annotated[
        pathlib.Path | None,
        typer.Option("--index-dir", help="Folder on another disk that holds the index instead."),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Data port; 0 takes a free one.")] = 3181,
    control_port: Annotated[
        int, typer.Option("--control-port", help="Port of health and admin; 0 takes a free one.")
    ] = 3182,
    advertised_host: Annotated[
        str | None, typer.Option("--advertised-host", help="Host that brokers are told.")
    ] = None,
    settings: SettingsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = LogFormatName.TEXT,
) -> int:
    """Run one bookie: the storage of entries. A machine with several disks runs one for each."""
    end_with_supervisor()
    # Imported here: a bookie loads RocksDB, other commands must not.
    from octavo.bookie.config import BookieConfig
    from octavo.bookie.process import run
    from octavo.runtime.telemetry import configure_logging

    values: dict[str, object] = dict(
        bookie_id=bookie_id,
        metadata_url=metadata,
        data_dir=data,
        index_dir=index_dir,
        host=host,
        port=port,
        control_port=control_port,
        advertised_host=advertised_host,
    )
    values.update(parse_settings(settings or [], "-X"))
    config = BookieConfig.load(**values)
    configure_logging(log_level, log_format=log_format.value)
    return run(config)


def broker(
    broker_id: IdOption,
    metadata: MetadataOption,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="gRPC port; 0 takes a free one.")] = 7650,
    advertised_address: Annotated[
        str | None, typer.Option("--advertised-address", help="host:port that clients are told.")
    ] = None,
    settings: SettingsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = LogFormatName.TEXT,
) -> int:
    """Run one broker: it serves topics and keeps nothing."""
    end_with_supervisor()
    # Imported here: a broker loads gRPC and the codecs, other commands must not.
    from octavo.runtime.telemetry import configure_logging
    from octavo.serving.config import BrokerConfig
    from octavo.serving.process import run

    values: dict[str, object] = dict(
        broker_id=broker_id,
        metadata_url=metadata,
        host=host,
        port=port,
        advertised_address=advertised_address,
    )
    values.update(parse_settings(settings or [], "-X"))
    config = BrokerConfig.load(**values)
    configure_logging(log_level, log_format=log_format.value)
    return run(config)


def autorecovery(
    metadata: MetadataOption,
    name: Annotated[str, typer.Option("--id", help="Name of this process.")] = "autorecovery",
    enable: Annotated[
        bool | None,
        typer.Option(
            "--enable/--disable", help="Only switch it on or off for the whole cluster, and end."
        ),
    ] = None,
    settings: SettingsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = LogFormatName.TEXT,
) -> int:
    """Run one process that makes missing copies again.

    Bookies do so beside their work, unless `autorecovery` is off for them.
    """
    end_with_supervisor()
    # Imported here: loads the ledger client, other commands must not.
    from octavo.client.autorecovery.process import run
    from octavo.client.autorecovery.settings import AutorecoveryConfig
    from octavo.runtime.telemetry import configure_logging

    if enable is not None:
        from octavo.client.autorecovery.operator import switch

        switch(metadata, enable=enable)
        return 0
    values: dict[str, object] = dict(name=name, metadata_url=metadata)
    values.update(parse_settings(settings or [], "-X"))
    config = AutorecoveryConfig.load(**values)
    configure_logging(log_level, log_format=log_format.value)
    return run(config)


def end_with_supervisor() -> None:
    """Under a supervisor, die with it: a killed `octavo up` must not leave servers behind."""
    expected = os.environ.pop(PARENT_PID_VARIABLE, None)
    if expected is None:
        return
    # Imported here: loads uvloop, which commands without a server do not need.
    from octavo.runtime.process import die_with_parent

    die_with_parent()
    if os.getppid() != int(expected):
        raise IllegalStateError("the supervisor ended while this server was starting")
