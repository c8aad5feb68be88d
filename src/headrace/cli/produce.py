"""``headrace produce``: records from standard input or files into a topic."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.completion import complete_topics
from headrace.cli.errors import CliError, UsageError
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import Command, build, verb
from headrace.readable import readable

if TYPE_CHECKING:
    from headrace.cli.record import Header, Record

__all__ = ["command", "produce"]

PRODUCED = "Produced to partition %p at offset %o with timestamp %d.\\n"
_CHUNK_BYTES = 1 << 16
_POLL_S = 0.1


@verb(
    "produce",
    examples=r"""
    echo 'hello' | headrace produce orders -k first
    headrace produce orders -f '%k,%v\n' < orders.csv
    headrace produce orders lines.txt more.txt -z zstd -q -o ''
    headrace produce orders -f '%K{big32}%k%V{big32}%v' < orders.bin
    echo '42' | headrace produce orders -f '%k\n' --tombstone     deletes key 42 in a compacted topic
    """,
    reference=[
        (
            "Formats (-f)",
            r"""
            %k %v %t        key, value, topic; each ends at the text that follows it in the format
            %K %V %T        a length, before what it measures: %K{big32}%k, %V{4}%v
            %H%h{%k=%v;}    a number of headers and how each one looks
            %p %d           partition, timestamp in milliseconds
            %v{hex} %v{base64} %v{json}     decoded first; JSON ends by itself
            %% %{ %} \n \t \r \\ \xNN       characters to find in the input
            """,
        )
    ],
)
def produce(
    session: Session,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Where to write to.", autocompletion=complete_topics)
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="What to read instead of standard input.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", metavar="FORMAT", help=r"How records look in the input; see below. [%v\n]"
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option("--delimiter", "-D", metavar="TEXT", help=r"What ends a record, if not -f. [\n]"),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option("--key-delimiter", "-K", metavar="TEXT", help="What ends the key, if not -f. [no key]"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", metavar="KEY", help="Key of records that have none of their own."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="KEY=VALUE", help="A header on every record; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int, typer.Option("--partition", "-p", metavar="N", help="Not by key, but to this one.", min=-1)
    ] = -1,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", "-Z", help="An empty or missing value is null: it deletes the key.")
    ] = False,
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option("--compression", "-z", help="Codec of the batches."),
    ] = "none",
    acks: Annotated[
        Literal["all", "-1", "1", "0"],
        typer.Option("--acks", help="all: when it is safe; 1: when the leader has it; 0: do not wait."),
    ] = "all",
    output: Annotated[
        str | None,
        typer.Option(
            "--output-format", "-o", metavar="FORMAT", help="What to print per record; '' for nothing."
        ),
    ] = None,
    delivery_timeout: Annotated[
        float,
        typer.Option(
            "--delivery-timeout", metavar="SECONDS", help="Give a record up after that long.", min=1
        ),
    ] = 30.0,
    allow_auto_topic_creation: Annotated[
        bool, typer.Option("--allow-auto-topic-creation", help="A topic that is not there may be made.")
    ] = False,
) -> None:
    """Write records to a topic, from standard input or files.

    One record per line, unless told otherwise. It ends when every record is safe, or says how many are not.
    """
    from headrace.cli.delivery import Delivery
    from headrace.cli.format.reader import compile_reader
    from headrace.cli.format.source import Source

    if template is not None and (delimiter is not None or key_delimiter is not None):
        raise UsageError(
            "-f says by itself what ends a record", hint="leave out --delimiter and --key-delimiter"
        )
    fixed: list[Header] = [
        (name, value.encode("utf-8", "surrogateescape"))
        for name, value in parse_pairs(header or (), "-H").items()
    ]
    shape = _lines(key_delimiter, delimiter or r"\n") if template is None else template
    reader = compile_reader(shape)
    if output is None and not session.out.quiet:
        output = PRODUCED
    delivery = Delivery(
        session,
        output or "",
        compression=compression,
        acks="all" if acks == "-1" else acks,
        timeout_s=delivery_timeout,
        may_create=allow_auto_topic_creation,
    )
    default_key = None if key is None else key.encode("utf-8", "surrogateescape")
    with ExitStack() as opened:
        source = Source(_chunks(session, opened, files or [], delivery.poll))
        records = reader.read(source, topic=topic)
        delivery.send_all(_prepared(records, default_key, fixed, partition, tombstone))


def _lines(key_delimiter: str | None, delimiter: str) -> str:
    """A format for values, or keys and values, that end in given texts; a percent sign in those is only that."""
    key = "" if key_delimiter is None else f"%k{key_delimiter.replace('%', '%%')}"
    return f"{key}%v{delimiter.replace('%', '%%')}"


def _prepared(
    records: Iterator[Record], key: bytes | None, headers: list[Header], partition: int, tombstone: bool
) -> Iterator[Record]:
    for record in records:
        if record.key is None:
            record.key = key
        if record.partition < 0:
            record.partition = partition
        record.headers = [*headers, *record.headers]
        if tombstone and not record.value:
            record.value = None
        elif record.value is None:
            record.value = b""
        yield record


def _chunks(
    session: Session, opened: ExitStack, files: list[Path], poll: Callable[[], None]
) -> Callable[[], bytes]:
    """The files one after the other, or standard input, as they come; answers of the broker are heard meanwhile."""
    try:
        streams = [opened.enter_context(path.open("rb", buffering=0)) for path in files]
    except OSError as error:
        raise CliError(f"{error.filename} cannot be read: {error.strerror}") from None
    descriptors = [stream.fileno() for stream in streams] or [sys.stdin.fileno()]
    if not files and sys.stdin.isatty():
        session.out.note("reading records from the terminal; end with Ctrl-D")

    def next_chunk() -> bytes:
        while descriptors:
            descriptor = descriptors[0]
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                while not readable(descriptor, _POLL_S):
                    poll()
            data = os.read(descriptor, _CHUNK_BYTES)
            if data:
                return data
            descriptors.pop(0)
        return b""

    return next_chunk


def command() -> Command:
    return build(produce)
