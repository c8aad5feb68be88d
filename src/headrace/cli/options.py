"""Options and arguments that several commands share, with the shell completion of their values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.errors import NotConfirmed
from headrace.cli.session import Session
from headrace.errors import HeadraceError

__all__ = [
    "SHARED",
    "AlertExec",
    "AppName",
    "AsJson",
    "BootstrapServers",
    "ClientProperty",
    "Data",
    "DryRun",
    "Group",
    "Groups",
    "Master",
    "Partitions",
    "PgListen",
    "Quiet",
    "SettingsFile",
    "StopAfter",
    "Topic",
    "Topics",
    "Verbose",
    "Views",
    "Yes",
    "complete_groups",
    "complete_topics",
    "confirm",
    "confirm_start",
    "shared_values",
]

COMPLETION_TIMEOUT_S = 1.0
_CONNECT_TIMEOUT_S = 0.3


def _completion_session(context: typer.Context) -> Session:
    """Start a session with the options typed so far. An option after the verb (such as ``list``) overrides the same
    option before the verb.
    """
    level: Any = context
    typed: dict[str, Any] = {}
    while level is not None:
        typed = {**{name: value for name, value in level.params.items() if value}, **typed}
        level = level.parent
    return Session.begin(
        bootstrap_servers=typed.get("bootstrap_servers"),
        client_property=typed.get("client_property") or (),
        as_json=False,
        quiet=True,
        verbose=False,
        config=typed.get("settings_file"),
    )


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics within about a second. If no broker responds, return an empty list: an error message would
    garble the line that the user is typing.
    """
    from headrace.cli.kafka import cluster_metadata
    from headrace.cli.reach import check_reachable

    try:
        session = _completion_session(context)
        check_reachable(session.bootstrap, timeout_s=_CONNECT_TIMEOUT_S)
        topics = cluster_metadata(session, COMPLETION_TIMEOUT_S).topics
    except (HeadraceError, TimeoutError):
        return []
    return sorted(name for name in topics if incomplete.startswith("_") or not name.startswith("__"))


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Like ``complete_topics``, for consumer groups."""
    from confluent_kafka import KafkaException

    from headrace.cli.reach import check_reachable

    try:
        session = _completion_session(context)
        check_reachable(session.bootstrap, timeout_s=_CONNECT_TIMEOUT_S)
        future = session.cluster().admin().list_consumer_groups(request_timeout=COMPLETION_TIMEOUT_S)
        listing = future.result(timeout=COMPLETION_TIMEOUT_S)
    except (HeadraceError, KafkaException, TimeoutError):
        return []
    return sorted(group.group_id for group in listing.valid)


# Every command accepts these options, before or after the verb (such as ``list`` in ``headrace topic list``).

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,…",
        help="Brokers for the first connection (default: HEADRACE_BOOTSTRAP_SERVERS, KAFKA_BOOTSTRAP_SERVERS, "
        "headrace.toml, then the setting log.listen, normally 127.0.0.1:9092).",
    ),
]
ClientProperty = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        "--client-property",
        metavar="KEY=VALUE",
        help="Set a librdkafka property, e.g. security.protocol=ssl; may be repeated.",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", metavar="FILE", help="Settings file (default: headrace.toml in the current folder)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only data and errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print the Kafka client's log and full stack traces.")
]

SHARED: dict[str, tuple[Any, object]] = {
    "bootstrap_servers": (BootstrapServers, None),
    "client_property": (ClientProperty, None),
    "settings_file": (SettingsFile, None),
    "as_json": (AsJson, False),
    "quiet": (Quiet, False),
    "verbose": (Verbose, False),
}


def shared_values(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the shared options from a verb's arguments, and return those that have a value."""
    return {name: value for name in SHARED if (value := arguments.pop(name, None))}


# Several verbs accept these arguments and options.

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics)
]
Topics = Annotated[
    list[str], typer.Argument(metavar="TOPIC", help="Names of topics.", autocompletion=complete_topics)
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=complete_groups)
]
Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP", help="Names of groups.", autocompletion=complete_groups)
]
Partitions = Annotated[
    str | None,
    typer.Option("--partitions", "-p", metavar="0,2,5-7", help="Use only these partitions (default: all)."),
]
AppName = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app: Python module and variable, e.g. shop:app.")
]
Views = Annotated[
    list[str] | None, typer.Argument(metavar="VIEW", help="Names of views (default: all views).")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DIR",
        help="Directory of log, Spark state and views (default: the setting data, normally ./headrace-data).",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark master (default: the setting spark.master, normally local[*])."
    ),
]
StopAfter = Annotated[
    float | None,
    typer.Option(
        "--for", metavar="SECONDS", help="Stop after this many seconds (default: run until Ctrl-C).", min=1
    ),
]
PgListen = Annotated[
    str | None,
    typer.Option(
        "--pg-listen",
        metavar="HOST:PORT",
        help="Also serve read-only SQL over the PostgreSQL protocol at this address, for psql and BI tools "
        "(default: off). Clients log in with a token as the password.",
    ),
]
AlertExec = Annotated[
    str | None,
    typer.Option(
        "--alert-exec",
        metavar="COMMAND",
        help="Run this command when an alert starts to fire or is resolved. It gets the alert as JSON on stdin; no "
        "shell runs it (default: the setting alerts.exec).",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show the changes without making them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]


def confirm(consequence: str, *, answer: str, yes: bool) -> None:
    """Prompt the user to type ``answer``. Without a terminal, ``--yes`` is required."""
    if yes:
        return
    _expect_terminal(f"{consequence} This cannot be undone")
    if _prompt(f"{consequence} This cannot be undone. Type {answer!r} to continue: ") != answer:
        raise NotConfirmed("nothing was changed", hint=f"type {answer!r} to confirm")


def confirm_start(work: str, *, yes: bool) -> None:
    """Prompt the user before long work that deletes nothing. Without a terminal, ``--yes`` is required."""
    if yes:
        return
    _expect_terminal(f"nothing was changed: {work} needs your confirmation")
    if _prompt(f"{work}? [y/N]: ").lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was changed", hint="type y to confirm, or pass --yes")


def _expect_terminal(consequence: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotConfirmed(
            f"{consequence}, and stdin is not a terminal, so you cannot confirm it here",
            hint="pass --yes to confirm (-y)",
        )


def _prompt(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
