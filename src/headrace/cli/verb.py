"""How a verb becomes a command: options that every verb has, sections of help as written, errors as exit
codes.

A verb is a function that takes a ``Session`` first and its own options after it. It may be given the shared
options in either place, ``headrace -b HOST topic list`` or ``headrace topic list -b HOST``; the latter
wins.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from headrace.cli.coercion import with_plain_values
from headrace.cli.errors import EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_INTERRUPTED, CliError, exit_code_of
from headrace.cli.output import show_error, to_json
from headrace.cli.session import Session
from headrace.cli.shared import SHARED, shared_values
from headrace.cli.stopping import EXIT_TERMINATED
from headrace.errors import HeadraceError

__all__ = ["Noun", "Verb", "build", "noun", "verb", "write_sections"]

_SECTION_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    function: Callable[..., int | None]
    """What it returns is the exit code, if not 0."""
    sections: tuple[tuple[str, str], ...]
    shared: tuple[str, ...]


def verb(
    name: str,
    *,
    examples: str,
    reference: Sequence[tuple[str, str]] = (),
    shared: Sequence[str] = tuple(SHARED),
) -> Callable[[Callable[..., int | None]], Verb]:
    """Examples and reference are shown as they are written; ``shared`` names the options everywhere that fit."""

    def wrap(function: Callable[..., int | None]) -> Verb:
        return Verb(name, function, (*reference, ("Examples", examples)), tuple(shared))

    return wrap


class Command(TyperCommand):
    sections: tuple[tuple[str, str], ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        return with_plain_values(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [self.options_metavar or "", *map(_usage_of, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        own: list[tuple[str, str]] = []
        arguments: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                arguments.append((_usage_of(param), param.help or ""))
            else:
                (shared if param.name in SHARED or param.name == "help" else own).append(record)
        for title, rows in (("Arguments", arguments), ("Options", own), ("Options everywhere", shared)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_sections(self.sections, formatter)


class Noun(TyperGroup):
    """A command that holds others: a stand-in for each, which knows its name and summary, until one is used."""

    load: Callable[[str], TyperCommand | TyperGroup]

    def get_params(self, ctx: Any) -> list[Any]:
        return with_plain_values(super().get_params(ctx))

    def stand_in(self, name: str, summary: str, *, hidden: bool = False) -> None:
        self.add_command(TyperCommand(name, help=summary, hidden=hidden, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if found is None or name is None else self.load(name), rest


def _usage_of(argument: Any) -> str:
    name = f"{argument.metavar}{'...' * (argument.nargs == -1)}"
    return name if argument.required else f"[{name}]"


def write_sections(sections: Sequence[tuple[str, str]], formatter: Any) -> None:
    for title, text in sections:
        formatter.write("\n")
        formatter.write_heading(title)
        for line in inspect.cleandoc(text).splitlines():
            formatter.write(f"{_SECTION_INDENT}{line}".rstrip() + "\n")


def _signature(function: Callable[..., int | None], shared: Sequence[str]) -> inspect.Signature:
    """The verb's own parameters without the session, then the shared ones, then Typer's context."""
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword, annotation=hints[parameter.name]) for parameter in own]
    parameters += [
        inspect.Parameter(name, keyword, annotation=annotation, default=default)
        for name, (annotation, default) in SHARED.items()
        if name in shared
    ]
    return inspect.Signature(
        [*parameters, inspect.Parameter("context", keyword, annotation=typer.Context)],
    )


def build(item: Verb) -> Command:
    def run(*, context: typer.Context, **arguments: Any) -> None:
        given = {**(context.find_root().obj or {}), **shared_values(arguments)}
        raise typer.Exit(_run(item.function, given, arguments))

    signature = _signature(item.function, item.shared)
    vars(run)["__signature__"] = signature
    run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    run.__doc__ = item.function.__doc__
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(item.name, cls=Command)(run)
    command = typer.main.get_command(app)
    assert isinstance(command, Command)
    command.sections = item.sections
    return command


def noun(name: str, summary: str, verbs: Sequence[Verb]) -> Noun:
    """A command that only holds others, e.g. ``topic``."""
    group = Noun(name=name, help=summary, no_args_is_help=True, rich_markup_mode=None)
    items = {item.name: item for item in verbs}
    for item in verbs:
        group.stand_in(item.name, inspect.getdoc(item.function) or "")
    group.load = lambda chosen: build(items[chosen])
    return group


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)


def _run(function: Callable[..., int | None], given: dict[str, Any], arguments: dict[str, Any]) -> int:
    as_json, verbose = bool(given.get("as_json")), bool(given.get("verbose"))
    # So that a kill closes clients and child processes on the way out, as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        session = Session.begin(
            bootstrap_servers=given.get("bootstrap_servers"),
            client_property=given.get("client_property") or (),
            as_json=as_json,
            quiet=bool(given.get("quiet")),
            verbose=verbose,
            config=given.get("settings_file"),
        )
        code = function(session, **arguments)
        session.out.flush()
    except HeadraceError as error:
        report(error, as_json=as_json, verbose=verbose)
        return exit_code_of(error)
    except BrokenPipeError:
        # Whoever read our output has seen enough. What Python still holds for it must not raise again at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        report(_unexpected(error), as_json=as_json, verbose=verbose)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    return code or 0


def _unexpected(error: Exception) -> CliError:
    """A fault of ours: said in one line, with the way to see all of it."""
    fault = CliError(
        f"something went wrong that should not have: {type(error).__name__}: {error}",
        hint="this is a fault in headrace; -v shows where it happened",
    )
    fault.__cause__ = error
    return fault


def report(error: HeadraceError, *, as_json: bool, verbose: bool) -> None:
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        sys.stderr.write(to_json({"error": error.facts()}).decode() + "\n")
    else:
        show_error(str(error))
