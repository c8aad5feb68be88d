"""Turns functions into commands: shared options, help sections, conversion of values, exit codes.

A verb is a function whose first parameter is a ``Session``, followed by its own options. Shared options are accepted in
two places: ``headrace -b HOST topic list`` and ``headrace topic list -b HOST``. The second place has precedence.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, get_args, get_origin, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from headrace.cli.errors import EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_INTERRUPTED, CliError, exit_code_of
from headrace.cli.interrupt import EXIT_TERMINATED
from headrace.cli.options import SHARED, shared_values
from headrace.cli.output import show_error, to_json
from headrace.cli.session import Session
from headrace.errors import HeadraceError

__all__ = ["CommandGroup", "Verb", "build", "command_group", "report", "verb", "write_sections"]

_SECTION_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    function: Callable[..., int | None]
    """Returns the exit code; None means 0."""
    sections: tuple[tuple[str, str], ...]
    shared: tuple[str, ...]


def verb(
    name: str,
    *,
    examples: str,
    reference: Sequence[tuple[str, str]] = (),
    shared: Sequence[str] = tuple(SHARED),
) -> Callable[[Callable[..., int | None]], Verb]:
    """Declare a verb. ``shared`` names the shared options that it accepts. Its help prints ``examples`` and
    ``reference`` verbatim.
    """

    def wrap(function: Callable[..., int | None]) -> Verb:
        return Verb(name, function, (*reference, ("Examples", examples)), tuple(shared))

    return wrap


# Conversion of option values


class _PlainConverter:
    """Converts a parameter's text to str, int, float, bool or Path.

    Typer's own converter imports a validation library, and that import takes longer than listing a broker's topics. If
    a later Typer ignores ``_runtime_param``, its own converter gives the same result, but slower. A test detects that.
    """

    def __init__(self, annotation: Any, choices: tuple[str, ...] | None) -> None:
        self._is_list = get_origin(annotation) is list
        self._type = get_args(annotation)[0] if self._is_list else annotation
        self._choices = choices

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if self._is_list else None
        if self._is_list:
            return tuple(self._convert(item, param, ctx) for item in value)
        return self._convert(value, param, ctx)

    def _convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            if self._choices is not None:
                if value not in self._choices:
                    raise ValueError(f"{value!r} is not one of {', '.join(self._choices)}.")
                return value
            if self._type in (int, float):
                converted = self._number(value)
                if param.min is not None and converted < param.min:
                    raise ValueError(f"{value} is below {param.min}.")
                if param.max is not None and converted > param.max:
                    raise ValueError(f"{value} is above {param.max}.")
                return converted
            return Path(value) if self._type is Path else value
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _number(self, value: Any) -> int | float:
        try:
            number: int | float = self._type(value)
        except ValueError:
            kind = "a whole number" if self._type is int else "a number"
            raise ValueError(f"{value!r} is not {kind}.") from None
        return number


def _with_plain_converters(params: list[Any]) -> list[Any]:
    for param in params:
        descriptor = getattr(param, "type_descriptor", None)
        if descriptor is None:
            continue
        inner = get_args(descriptor.annotation)
        kind = inner[0] if get_origin(descriptor.annotation) is list else descriptor.annotation
        if descriptor.choices is not None or kind in (str, int, float, bool, Path):
            param._runtime_param = _PlainConverter(descriptor.annotation, descriptor.choices)
    return params


# Commands and their help


class Command(TyperCommand):
    sections: tuple[tuple[str, str], ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_plain_converters(super().get_params(ctx))

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


class CommandGroup(TyperGroup):
    """A command with subcommands. A subcommand is a placeholder (name, summary) until ``load`` imports it for use."""

    load: Callable[[str], TyperCommand | TyperGroup]

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_plain_converters(super().get_params(ctx))

    def add_placeholder(self, name: str, summary: str, *, hidden: bool = False) -> None:
        self.add_command(TyperCommand(name, help=summary, hidden=hidden, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, None if placeholder is None or name is None else self.load(name), rest


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
    """Return the verb's own parameters without the session, then the shared parameters, then Typer's context."""
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
        shared = {**(context.find_root().obj or {}), **shared_values(arguments)}
        raise typer.Exit(_run(item.function, shared, arguments))

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


def command_group(name: str, summary: str, verbs: Sequence[Verb]) -> CommandGroup:
    """Create a command that has only subcommands, e.g. ``topic``."""
    group = CommandGroup(name=name, help=summary, no_args_is_help=True, rich_markup_mode=None)
    items = {item.name: item for item in verbs}
    for item in verbs:
        group.add_placeholder(item.name, inspect.getdoc(item.function) or "")
    group.load = lambda chosen: build(items[chosen])
    return group


# One run, from the session to the exit code


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)


def _run(function: Callable[..., int | None], shared: dict[str, Any], arguments: dict[str, Any]) -> int:
    as_json, verbose = bool(shared.get("as_json")), bool(shared.get("verbose"))
    # On SIGTERM, the command must close clients and child processes before it exits, as on Ctrl-C.
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        session = Session.begin(
            bootstrap_servers=shared.get("bootstrap_servers"),
            client_property=shared.get("client_property") or (),
            as_json=as_json,
            quiet=bool(shared.get("quiet")),
            verbose=verbose,
            config=shared.get("settings_file"),
        )
        code = function(session, **arguments)
        session.out.flush()
    except HeadraceError as error:
        report(error, as_json=as_json, verbose=verbose)
        return exit_code_of(error)
    except BrokenPipeError:
        # The process that reads the output closed it. Buffered output must not raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        report(_unexpected(error), as_json=as_json, verbose=verbose)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, previous)
    return code or 0


def _unexpected(error: Exception) -> CliError:
    fault = CliError(
        f"unexpected error: {type(error).__name__}: {error}",
        hint="this is a bug in headrace; -v prints the stack trace",
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
