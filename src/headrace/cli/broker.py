"""``headrace broker`` with help, completion and error messages.

Valid arguments do not reach this module: ``broker_args`` parses them without Typer. Both modules must accept the same
arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.broker_args import BrokerArgs, run_broker_args
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import Command, build, verb

__all__ = ["broker", "command"]

_DEFAULT = BrokerArgs()


@verb(
    "broker",
    shared=("verbose",),
    examples="""
    headrace broker --data ./headrace-data
    headrace broker --listen 127.0.0.1:0 --data /var/lib/headrace --durability os
    headrace broker --data ./d --set log.retention.ms=86400000 --set num.partitions=3
    headrace broker --data ./d --backup /mnt/backup
    headrace broker --data ./d --listen 0.0.0.0:9092 --advertise mill.example:9092 --anyone-may-read-and-write
    """,
    reference=[
        (
            "Durability",
            """
            synced   the broker acknowledges records once they are on disk; no acknowledged record is lost
            os       the broker acknowledges records once the operating system has them; a power loss can lose
                     the records of the last seconds
            """,
        )
    ],
)
def broker(
    session: Session,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            "-l",
            metavar="HOST:PORT",
            help="Address to listen on; port 0 selects a free port (default: the setting log.listen).",
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="DIR", help="Data directory; created if missing.")
    ] = _DEFAULT.data,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="Address that clients connect to (default: the address of --listen).",
        ),
    ] = None,
    durability: Annotated[
        Literal["synced", "os"],
        typer.Option("--durability", help="When the broker acknowledges records; see below."),
    ] = "synced",
    open_to_anyone: Annotated[
        bool,
        typer.Option(
            "--anyone-may-read-and-write",
            help="Required to listen beyond this machine. The broker has no logins: anyone who reaches the port can "
            "read, write and delete everything.",
        ),
    ] = False,
    auto_create_topics: Annotated[
        bool,
        typer.Option(
            "--auto-create-topics/--no-auto-create-topics",
            help="Create a missing topic when a client first requests it.",
        ),
    ] = _DEFAULT.auto_create_topics,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a broker setting by its Kafka name; may be repeated."
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option("--log-format", help="Format of the broker's own log.")
    ] = "text",
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve /metrics for Prometheus at this address (default: off).",
        ),
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup",
            metavar="FOLDER",
            help="Folder for a continuous backup: another disk, or a mount (default: no backup).",
        ),
    ] = None,
    backup_every_ms: Annotated[
        str | None,
        typer.Option(
            "--backup-every-ms",
            metavar="MS",
            help="Milliseconds between backups: the most you can lose (default 10000).",
        ),
    ] = None,
    backup_keep_s: Annotated[
        str | None,
        typer.Option(
            "--backup-keep-s",
            metavar="SECONDS",
            help="Seconds for which restore points are retained (default 604800, a week).",
        ),
    ] = None,
    backup_key_file: Annotated[
        str | None,
        typer.Option(
            "--backup-key-file",
            metavar="FILE",
            help="File with the key for the backup's MAC, a message authentication code (default: no MAC).",
        ),
    ] = None,
) -> int:
    """Run the embedded broker, which speaks the Kafka protocol.

    The broker prints one line when it is ready, and runs until Ctrl-C or SIGTERM.
    """
    args = BrokerArgs(
        listen=listen,
        data=data,
        advertise=advertise,
        durability=durability,
        open_to_anyone=open_to_anyone,
        auto_create_topics=auto_create_topics,
        log_format=log_format,
        metrics=metrics,
        backup=backup,
        backup_every_ms=backup_every_ms,
        backup_keep_s=backup_keep_s,
        backup_key_file=backup_key_file,
        settings=parse_pairs(settings or (), "--set"),
    )
    return run_broker_args(args)


def command() -> Command:
    return build(broker)
