"""The options that every command takes, before the verb or after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "SHARED",
    "AsJson",
    "BootstrapServers",
    "ClientProperty",
    "Quiet",
    "SettingsFile",
    "Verbose",
    "shared_values",
]

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,…",
        help="Brokers to ask first. Otherwise HEADRACE_BOOTSTRAP_SERVERS, KAFKA_BOOTSTRAP_SERVERS, "
        "headrace.toml or 127.0.0.1:9092.",
    ),
]
ClientProperty = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        "--client-property",
        metavar="KEY=VALUE",
        help="A property of librdkafka, e.g. security.protocol=ssl; may be repeated.",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="Settings, instead of headrace.toml of this folder."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only data and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="The client's log, and full traces.")]

SHARED: dict[str, tuple[Any, object]] = {
    "bootstrap_servers": (BootstrapServers, None),
    "client_property": (ClientProperty, None),
    "settings_file": (SettingsFile, None),
    "as_json": (AsJson, False),
    "quiet": (Quiet, False),
    "verbose": (Verbose, False),
}


def shared_values(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the shared options out of a verb's arguments, and return those that were given."""
    return {name: value for name in SHARED if (value := arguments.pop(name, None))}
