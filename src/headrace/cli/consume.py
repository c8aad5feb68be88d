"""``headrace consume``: records from topics to standard output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.completion import complete_groups, complete_topics
from headrace.cli.consume_help import EXAMPLES, REFERENCE
from headrace.cli.errors import CliError, UsageError
from headrace.cli.offsets import Kind, Range, parse_range
from headrace.cli.parameters import Partitions
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.cli.filters import Filter
    from headrace.cli.record import Record

__all__ = ["command", "consume"]

TAIL_MAX = 100_000


@verb("consume", examples=EXAMPLES, reference=REFERENCE)
def consume(
    session: Session,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC", help="Names of topics.", autocompletion=complete_topics)
    ],
    offset: Annotated[
        str,
        typer.Option("--offset", "-o", metavar="PLACE[:PLACE]", help="Where to begin and stop; see below."),
    ] = "start",
    num: Annotated[
        int | None, typer.Option("--num", "-n", metavar="N", help="Stop after N records.", min=1)
    ] = None,
    exit_: Annotated[
        bool, typer.Option("--exit", "-e", help="Stop at the end as it is now, instead of waiting for more.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="N", help="The last N records, oldest first, then stop.", min=1, max=TAIL_MAX
        ),
    ] = None,
    partitions: Partitions = None,
    regex: Annotated[
        bool, typer.Option("--regex", "-r", help="TOPIC is a regular expression for the whole name.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of a group: go on where it left off, and commit what was printed.",
            autocompletion=complete_groups,
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="FORMAT", help="How to print a record; see below. [json]"),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="EXPR", help="Only records that match; see below. May be repeated."),
    ] = None,
    isolation: Annotated[
        Literal["read_committed", "read_uncommitted"],
        typer.Option("--isolation", help="Whether to see records of open and aborted transactions."),
    ] = "read_committed",
    meta_only: Annotated[
        bool, typer.Option("--meta-only", help="JSON with the value's size instead of the value.")
    ] = False,
    pretty: Annotated[
        bool | None,
        typer.Option("--pretty/--no-pretty", help="JSON over several lines; the default on a terminal."),
    ] = None,
) -> None:
    """Read records from topics and print them.

    As JSON, or in a format of your own. Without --exit, -n or an end in -o it waits for more.
    """
    span = parse_range(offset, SystemClock().now_ms())
    if tail is not None and (exit_ or group or num or offset != "start"):
        raise UsageError(
            "--tail says by itself where to begin and stop", hint="leave out -o, -n, -g and --exit"
        )
    if session.out.as_json and (template or pretty):
        raise UsageError("--json is one line per record", hint="leave out --json, or -f and --pretty")
    from headrace.cli.emit import Emitter, choose_printer
    from headrace.cli.filters import compile_filters

    printer = choose_printer(session, template, pretty=pretty, meta_only=meta_only)
    passes = compile_filters(filters or ())
    emitter = Emitter(session.out.write, printer, passes if filters else None, num)

    def take(record: Record) -> bool:
        emitter.emit(record)
        return not emitter.full

    if group is None:
        _read_alone(session, topics, span, take, passes, regex, exit_, tail, partitions, isolation, template)
    else:
        _read_in_group(session, topics, group, span, take, regex, exit_, partitions, isolation)


def _read_alone(
    session: Session,
    topics: list[str],
    span: Range,
    take: Callable[[Record], bool],
    passes: Filter,
    regex: bool,
    exit_: bool,
    tail: int | None,
    partitions: str | None,
    isolation: str,
    template: str | None,
) -> None:
    from confluent_kafka import IsolationLevel

    from headrace.cli.client import open_admin
    from headrace.cli.lookup import bounds_of, matching_topics, parse_partitions, partitions_of
    from headrace.cli.reading import make_plan, read
    from headrace.cli.tail import last_records

    admin = open_admin(session)
    names = matching_topics(session, admin, topics) if regex else list(dict.fromkeys(topics))
    if not names:
        raise CliError(
            f"no topic matches {' or '.join(topics)}", hint="see what there is: headrace topic list"
        )
    where = partitions_of(session, admin, names, parse_partitions(partitions))
    level = IsolationLevel[isolation.upper()]
    if tail is not None:
        bounds = bounds_of(session, admin, where, isolation=level)
        for record in last_records(session, bounds, tail, isolation=level, passes=passes):
            take(record)
        return
    plan = make_plan(session, admin, where, span, stop_at_end=exit_, isolation=level)
    read(
        session,
        plan,
        isolation=level,
        take=take,
        batch_done=session.out.flush,
        with_bounds=template is not None and ("%[" in template or "%]" in template),
    )


def _read_in_group(
    session: Session,
    topics: list[str],
    group: str,
    span: Range,
    take: Callable[[Record], bool],
    regex: bool,
    exit_: bool,
    partitions: str | None,
    isolation: str,
) -> None:
    from headrace.cli.client import open_admin
    from headrace.cli.following import follow
    from headrace.cli.lookup import describe_topics

    if partitions is not None:
        raise UsageError("a group shares out partitions by itself", hint="leave out -p or -g")
    if span.until is not None or span.begin.kind not in (Kind.START, Kind.END):
        raise UsageError(
            "a group goes on where it left off; -o can only say where a new one begins: start or end",
            hint=f"to move it: headrace group seek {group} --to PLACE",
        )
    if regex:
        wanted = [f"^({topic.removeprefix('^').removesuffix('$')})$" for topic in topics]
    else:
        wanted = list(dict.fromkeys(topics))
        describe_topics(session, open_admin(session), wanted)
    follow(
        session,
        wanted,
        group,
        from_end=span.begin.kind is Kind.END,
        stop_at_end=exit_,
        isolation=isolation,
        take=take,
        batch_done=session.out.flush,
    )


def command() -> Command:
    return build(consume)
