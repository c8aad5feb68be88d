"""``headrace consume``: print records from topics to standard output.

The output is flushed once per batch, before the batch's offsets are committed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.errors import CliError, UsageError
from headrace.cli.offset_range import Kind, Range, parse_range
from headrace.cli.options import Partitions, Topics, complete_groups
from headrace.cli.output import to_json
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.cli.filters import Filter
    from headrace.cli.format.printer import Printer
    from headrace.cli.record import Record

__all__ = ["command", "consume"]

TAIL_MAX = 100_000

_FORMATS = r"""
%t %k %v        topic, key, value            %T %K %V      their lengths in bytes
%p %o %e        partition, offset, epoch     %d            timestamp in milliseconds
%h{%k=%v }      each header                  %H            number of headers
%[ %]           start and end of the log     %i            number of records printed so far
%% %{ %}        a percent sign, braces       \n \t \r \\ \xNN

Text     %v{hex} %v{base64} %v{base64raw} %v{json} %v{unpack[>Iq s]}
Numbers  %K{big32} %o{little64} %p{hex8} %V{byte} %H{bool}
Time     %d{iso} %d{unix} %d{strftime[%F %T]} %d{go[2006-01-02 15:04:05.000]}
"""

_REFERENCE = (
    ("Formats (-f), printed verbatim: add a \\n", _FORMATS),
    (
        "Offsets (-o)",
        """
        start, end          from the oldest record; only new records
        47   47:   47:60    from offset 47; up to, but not including, 60
        :60  :end  47:end   up to an offset, or to the current end
        +10  -10            ten after the start; ten before the end, in each partition
        @-1h                records written in the last hour (ms, s, m, h, d, w)
        @-2h:-1h            between two times
        @2026-11-15         a day, UTC; also @2026-11-15T09:30:00Z, @1794735000000
        """,
    ),
    (
        "Filters (--filter)",
        """
        key = 42  key != "abc"  value contains "part"  key matches "^regex"  header.NAME = "abc"  topic in ("a", "b")
        key startswith "ab"; combine with and, or, not and parentheses
        """,
    ),
)

_EXAMPLES = r"""
headrace consume orders                             all records, then wait for more
headrace consume orders -o end -n 1                 the next record
headrace consume orders -o @-1h --exit              the last hour, then stop
headrace consume orders --tail 10 -f '%p:%o %k %v\n'
headrace consume 'orders.*' --regex --filter 'value contains "error"'
headrace consume orders -g billing                  as a member of a group
headrace consume orders -o start -e -f '%K{big32}%k%V{big32}%v' > orders.bin
"""


@verb("consume", examples=_EXAMPLES, reference=_REFERENCE)
def consume(
    session: Session,
    topics: Topics,
    offset: Annotated[
        str,
        typer.Option("--offset", "-o", metavar="OFFSET[:OFFSET]", help="Where to start and stop; see below."),
    ] = "start",
    num: Annotated[
        int | None, typer.Option("--num", "-n", metavar="N", help="Stop after N records.", min=1)
    ] = None,
    exit_: Annotated[
        bool,
        typer.Option("--exit", "-e", help="Stop at the current end instead of waiting for more records."),
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            metavar="N",
            help="Print the last N records, oldest first, then stop.",
            min=1,
            max=TAIL_MAX,
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
            help="Read as a member of this group: continue from its committed offsets, commit printed records.",
            autocompletion=complete_groups,
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", metavar="FORMAT", help="Format of each record; see below (default: json)."
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="EXPR", help="Print only matching records; see below. May be repeated."
        ),
    ] = None,
    isolation: Annotated[
        Literal["read_committed", "read_uncommitted"],
        typer.Option(
            "--isolation", help="read_uncommitted also prints records of open and aborted transactions."
        ),
    ] = "read_committed",
    meta_only: Annotated[
        bool, typer.Option("--meta-only", help="Print JSON with the value's size instead of the value.")
    ] = False,
    pretty: Annotated[
        bool | None,
        typer.Option("--pretty/--no-pretty", help="Print JSON over several lines (default on a terminal)."),
    ] = None,
) -> None:
    """Read records from topics and print them.

    Records are printed as JSON, or in the format of -f. Without --exit, -n, --tail or an end in -o, the command waits
    for more records.
    """
    span = parse_range(offset, SystemClock().now_ms())
    if tail is not None and (exit_ or group or num or offset != "start"):
        raise UsageError(
            "--tail cannot be combined with -o, -n, -g or --exit", hint="remove --tail, or remove the others"
        )
    if session.out.as_json and (template or pretty):
        raise UsageError(
            "--json cannot be combined with -f or --pretty", hint="remove --json, or remove -f and --pretty"
        )
    from headrace.cli.filters import compile_filters

    printer = _choose_printer(session, template, pretty=pretty, meta_only=meta_only)
    matches = compile_filters(filters or ())
    emitter = _Emitter(session.out.write, printer, matches if filters else None, num)

    def on_record(record: Record) -> bool:
        emitter.emit(record)
        return not emitter.full

    if group is None:
        _read_without_group(
            session, topics, span, on_record, matches, regex, exit_, tail, partitions, isolation, template
        )
    else:
        _read_in_group(session, topics, group, span, on_record, regex, exit_, partitions, isolation)


def _read_without_group(
    session: Session,
    topics: list[str],
    span: Range,
    on_record: Callable[[Record], bool],
    matches: Filter,
    regex: bool,
    exit_: bool,
    tail: int | None,
    partitions: str | None,
    isolation: str,
    template: str | None,
) -> None:
    from confluent_kafka import IsolationLevel

    from headrace.cli.consume.partitions import last_records, make_plan, read
    from headrace.cli.kafka import bounds_of, matching_topics, parse_partitions, partitions_of

    names = matching_topics(session, topics) if regex else list(dict.fromkeys(topics))
    if not names:
        raise CliError(
            f"no topic matches {' or '.join(topics)}", hint="list topics with: headrace topic list"
        )
    chosen = partitions_of(session, names, parse_partitions(partitions))
    level = IsolationLevel[isolation.upper()]
    if tail is not None:
        bounds = bounds_of(session, chosen, isolation=level)
        for record in last_records(session, bounds, tail, isolation=level, matches=matches):
            on_record(record)
        return
    plan = make_plan(session, chosen, span, stop_at_end=exit_, isolation=level)
    read(
        session,
        plan,
        isolation=level,
        on_record=on_record,
        on_batch_end=session.out.flush,
        with_bounds=template is not None and ("%[" in template or "%]" in template),
    )


def _read_in_group(
    session: Session,
    topics: list[str],
    group: str,
    span: Range,
    on_record: Callable[[Record], bool],
    regex: bool,
    exit_: bool,
    partitions: str | None,
    isolation: str,
) -> None:
    from headrace.cli.consume.group import consume_in_group
    from headrace.cli.kafka import describe_topics

    if partitions is not None:
        raise UsageError(
            "-p and -g cannot be combined: a group assigns partitions itself", hint="use one of them"
        )
    if span.until is not None or span.begin.kind not in (Kind.START, Kind.END):
        raise UsageError(
            "with -g, -o must be start or end: it sets where a new group starts",
            hint=f"to move the group: headrace group seek {group} --to OFFSET",
        )
    if regex:
        subscription = [f"^({topic.removeprefix('^').removesuffix('$')})$" for topic in topics]
    else:
        subscription = list(dict.fromkeys(topics))
        describe_topics(session, subscription)
    consume_in_group(
        session,
        subscription,
        group,
        from_end=span.begin.kind is Kind.END,
        stop_at_end=exit_,
        isolation=isolation,
        on_record=on_record,
        on_batch_end=session.out.flush,
    )


def _choose_printer(
    session: Session, template: str | None, *, pretty: bool | None, meta_only: bool
) -> Printer:
    """Return a printer for a percent format or for JSON. On a terminal, JSON is indented by default."""
    if template is not None and template != "json" and not session.out.as_json:
        from headrace.cli.format.printer import compile_printer

        return compile_printer(template)
    import msgspec

    from headrace.cli.record import as_json

    indented = pretty if pretty is not None else sys.stdout.isatty() and not session.out.as_json

    def write(record: Record, count: int) -> bytes:
        line = to_json(as_json(record, meta_only=meta_only))
        return (msgspec.json.format(line, indent=2) if indented else line) + b"\n"

    return write


class _Emitter:
    """Filters, counts and prints records."""

    def __init__(
        self, write: Callable[[bytes], object], printer: Printer, matches: Filter | None, limit: int | None
    ) -> None:
        self._write = write
        self._printer = printer
        self._matches = matches
        self._limit = limit
        self.count = 0

    @property
    def full(self) -> bool:
        return self._limit is not None and self.count >= self._limit

    def emit(self, record: Record) -> None:
        if self._matches is None or self._matches(record):
            self.count += 1
            self._write(self._printer(record, self.count))


def command() -> Command:
    return build(consume)
