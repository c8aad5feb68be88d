"""``headrace broker``, the long way: help, completion, and the words for what is wrong with a line.

Lines that are in order never come here; see ``broker_line``, which must accept the same ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.broker_line import BrokerLine, run_broker_line
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import Command, build, verb

__all__ = ["broker", "command"]

_DEFAULT = BrokerLine()


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
            synced   an acknowledgement means that the disk has the records; nothing acknowledged is lost
            os       it means that the operating system has them; a power loss can take the last seconds
            """,
        )
    ],
)
def broker(
    session: Session,
    listen: Annotated[
        str,
        typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."),
    ] = _DEFAULT.listen,
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="DIR", help="Where everything is kept; made if missing.")
    ] = _DEFAULT.data,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="What clients are told to connect to, if not --listen."
        ),
    ] = None,
    durability: Annotated[
        Literal["synced", "os"],
        typer.Option("--durability", help="What an acknowledgement promises; see below."),
    ] = "synced",
    open_to_anyone: Annotated[
        bool,
        typer.Option(
            "--anyone-may-read-and-write",
            help="Needed to listen beyond this machine: there are no logins, so anyone who reaches the port may "
            "read, write and delete everything.",
        ),
    ] = False,
    auto_create_topics: Annotated[
        bool,
        typer.Option(
            "--auto-create-topics/--no-auto-create-topics",
            help="Whether a topic is made when a client first asks for it.",
        ),
    ] = _DEFAULT.auto_create_topics,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A broker setting by its Kafka name; may be repeated."
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option("--log-format", help="How the broker writes its log.")
    ] = "text",
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="HOST:PORT", help="Where Prometheus finds /metrics; without it, nowhere."
        ),
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup", metavar="FOLDER", help="Where to keep a continuous backup: another disk, or a mount."
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
            help="How far back one may restore; 604800 (a week) if not said.",
        ),
    ] = None,
    backup_key_file: Annotated[
        str | None,
        typer.Option(
            "--backup-key-file",
            metavar="FILE",
            help="File with the key for the MAC of the backup (default: no MAC).",
        ),
    ] = None,
) -> int:
    """Run the embedded broker, which speaks the Kafka protocol.

    It says one line when it is ready, and runs until it is told to stop (Ctrl-C or SIGTERM).
    """
    line = BrokerLine(
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
    return run_broker_line(line)


def command() -> Command:
    return build(broker)
