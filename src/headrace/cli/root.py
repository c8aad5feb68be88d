"""The root command, with the table of all commands. A command's module is imported when the command runs.

``headrace --help`` needs only the name and the summary of each command.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from headrace.cli.options import (
    AsJson,
    BootstrapServers,
    ClientProperty,
    Quiet,
    SettingsFile,
    Verbose,
    shared_values,
)
from headrace.cli.verb import CommandGroup, write_sections

__all__ = ["COMMANDS", "run"]


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    module: str
    summary: str
    alias: str = ""


COMMANDS = (
    Entry(
        "run",
        "headrace.cli.run",
        "Run a whole app on this machine: log, flows and views.",
    ),
    Entry("check", "headrace.cli.check", "Check an app without starting it, and report all mistakes."),
    Entry("deploy", "headrace.cli.deploy", "Bring changed flows into a running app, without a pause."),
    Entry("flow", "headrace.cli.flow", "List, run and rebuild an app's flows.", alias="flows"),
    Entry(
        "generation",
        "headrace.cli.generation",
        "List, compare, switch and drop the generations of flows.",
        alias="generations",
    ),
    Entry("graph", "headrace.cli.graph", "Show an app as a graph: table, Mermaid, DOT or OpenLineage."),
    Entry("init", "headrace.cli.init", "Create a small app that runs."),
    Entry("doctor", "headrace.cli.doctor", "Check what this machine lacks to run an app."),
    Entry("config", "headrace.cli.config", "Show every setting, its value and its origin."),
    Entry("broker", "headrace.cli.broker", "Run the embedded broker, which speaks the Kafka protocol."),
    Entry("backup", "headrace.cli.backup", "List, check and restore a broker's backups."),
    Entry("topic", "headrace.cli.topic", "Create, list, describe, change and delete topics.", alias="topics"),
    Entry("produce", "headrace.cli.produce", "Write records to a topic, from standard input or files."),
    Entry("consume", "headrace.cli.consume", "Read records from topics and print them."),
    Entry(
        "group",
        "headrace.cli.group",
        "List, describe, move and delete consumer groups.",
        alias="groups",
    ),
    Entry(
        "lag",
        "headrace.cli.lag",
        "Show the lag of groups, or of an app's flows and views.",
    ),
    Entry("alert", "headrace.cli.alert", "List an app's alerts, and watch for new alerts.", alias="alerts"),
    Entry(
        "view",
        "headrace.cli.view",
        "List, describe, follow, rebuild and replace an app's views.",
        alias="views",
    ),
    Entry("dead", "headrace.cli.dead", "List, show, replay, correct and dismiss dead letters."),
    Entry("query", "headrace.cli.query", "Read a view, or query views with SQL."),
    Entry("serve", "headrace.cli.serve", "Serve an app's views and topics over HTTP."),
    Entry(
        "token", "headrace.cli.token", "Create, list and revoke the tokens of headrace serve.", alias="tokens"
    ),
    Entry("verify", "headrace.cli.verify", "Prove that views match the log, while the app runs."),
)

_SECTIONS = (
    (
        "Examples",
        """
        headrace run examples.shop:app
        headrace broker --data ./headrace-data
        headrace topic create orders -p 3
        echo 'hello' | headrace produce orders -k first
        headrace consume orders -o start --exit
        headrace lag
        """,
    ),
    (
        "Exit codes",
        """
        0    done
        1    failed; the message names the failure, its cause and the next step
        2    the command line or a setting is invalid
        3    no broker can be reached
        4    the requested records were deleted before they were read
        5    lag is above --fail-above
        6    verify: some input was deleted, so a part cannot be proven; the rest is proven
        7    verify: a view or flow cannot be verified yet
        130  interrupted with Ctrl-C
        141  the process that reads the output closed it
        """,
    ),
    (
        "Environment",
        """
        HEADRACE_BOOTSTRAP_SERVERS, KAFKA_BOOTSTRAP_SERVERS   brokers, unless -b is set
        HEADRACE_<SECTION>__<NAME>                            any other setting: headrace config
        NO_COLOR                                              no colours
        """,
    ),
)


class Root(CommandGroup):
    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.load = _load
        for entry in COMMANDS:
            self.add_placeholder(entry.name, entry.summary)
            if entry.alias:
                self.add_placeholder(entry.alias, entry.summary, hidden=True)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_sections(_SECTIONS, formatter)


def _load(name: str) -> TyperCommand | TyperGroup:
    entry = next(entry for entry in COMMANDS if name in (entry.name, entry.alias))
    command: TyperCommand | TyperGroup = import_module(entry.module).command()
    return command


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


def _build() -> TyperGroup:
    app = typer.Typer(cls=Root, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)

    @app.callback()
    def headrace(
        context: typer.Context,
        bootstrap_servers: BootstrapServers = None,
        client_property: ClientProperty = None,
        settings_file: SettingsFile = None,
        as_json: AsJson = False,
        quiet: Quiet = False,
        verbose: Verbose = False,
        version: Annotated[
            bool,
            typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
        ] = False,
    ) -> None:
        """The database turned inside out: one log, and everything else derived from it.

        The commands work the same with the embedded broker and with Apache Kafka.
        """
        shared = {
            "bootstrap_servers": bootstrap_servers,
            "client_property": client_property,
            "settings_file": settings_file,
            "as_json": as_json,
            "quiet": quiet,
            "verbose": verbose,
        }
        context.obj = shared_values(shared)

    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def run() -> int:
    command = _build()
    command.main(prog_name="headrace")
    return 0
