"""``headrace produce``: write records from standard input or files to a topic."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.errors import CliError, UsageError
from headrace.cli.options import complete_topics
from headrace.cli.session import Session, parse_pairs
from headrace.cli.verb import Command, build, verb
from headrace.files import readable

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
            %k %v %t        key, value, topic; a field ends at the text that follows it in the format
            %K %V %T        the length of a field, before the field: %K{big32}%k, %V{4}%v
            %H%h{%k=%v;}    the number of headers, and the format of a header
            %p %d           partition, timestamp in milliseconds
            %v{hex} %v{base64} %v{json}     a value in this encoding; JSON needs no delimiter
            %% %{ %} \n \t \r \\ \xNN       literal characters of the input
            """,
        )
    ],
)
def produce(
    session: Session,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to write to.", autocompletion=complete_topics)
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files to read (default: standard input).")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--format", "-f", metavar="FORMAT", help=r"Format of the input; see below (default: %v\n)."
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter", "-D", metavar="TEXT", help=r"Text that ends a record, instead of -f (default: \n)."
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "--key-delimiter",
            "-K",
            metavar="TEXT",
            help="Text between key and value, instead of -f (default: no key in the input).",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", metavar="KEY", help="Key of records without a key in the input."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="KEY=VALUE", help="Add a header to every record; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int,
        typer.Option(
            "--partition", "-p", metavar="N", help="Partition to write to (default: by key).", min=-1
        ),
    ] = -1,
    tombstone: Annotated[
        bool,
        typer.Option(
            "--tombstone", "-Z", help="Write an empty or missing value as null, which deletes the key."
        ),
    ] = False,
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option("--compression", "-z", help="Compression codec of the batches."),
    ] = "none",
    acks: Annotated[
        Literal["all", "-1", "1", "0"],
        typer.Option(
            "--acks", help="Wait for all in-sync replicas (all, -1), the leader (1) or nothing (0)."
        ),
    ] = "all",
    output: Annotated[
        str | None,
        typer.Option(
            "--output-format",
            "-o",
            metavar="FORMAT",
            help="Format of the line printed per record; '' prints nothing.",
        ),
    ] = None,
    delivery_timeout: Annotated[
        float,
        typer.Option(
            "--delivery-timeout",
            metavar="SECONDS",
            help="Fail if a record is not acknowledged in this time.",
            min=1,
        ),
    ] = 30.0,
    allow_auto_topic_creation: Annotated[
        bool, typer.Option("--allow-auto-topic-creation", help="Let the broker create a missing topic.")
    ] = False,
) -> None:
    """Write records to a topic, from standard input or files.

    Each line is a record, unless -f or -D sets another format. The command ends when every record is acknowledged. If
    records fail, it prints how many.
    """
    from headrace.cli.delivery import Delivery
    from headrace.cli.format.reader import compile_reader
    from headrace.cli.format.source import Source

    if template is not None and (delimiter is not None or key_delimiter is not None):
        raise UsageError(
            "-f cannot be combined with --delimiter or --key-delimiter",
            hint="write the delimiters into the format",
        )
    fixed_headers: list[Header] = [
        (name, value.encode("utf-8", "surrogateescape"))
        for name, value in parse_pairs(header or (), "-H").items()
    ]
    input_format = _line_format(key_delimiter, delimiter or r"\n") if template is None else template
    reader = compile_reader(input_format)
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
    with ExitStack() as stack:
        source = Source(_chunks(session, stack, files or [], delivery.poll))
        records = reader.read(source, topic=topic)
        delivery.send_all(_with_defaults(records, default_key, fixed_headers, partition, tombstone))


def _line_format(key_delimiter: str | None, delimiter: str) -> str:
    """Build the format of values, or of keys and values, with these delimiters. Escape their percent signs."""
    key = "" if key_delimiter is None else f"%k{key_delimiter.replace('%', '%%')}"
    return f"{key}%v{delimiter.replace('%', '%%')}"


def _with_defaults(
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
    session: Session, stack: ExitStack, files: list[Path], poll: Callable[[], None]
) -> Callable[[], bytes]:
    """Return a function that reads the next chunk of the files, or of standard input. While the function waits for
    input, it calls ``poll``.
    """
    try:
        streams = [stack.enter_context(path.open("rb", buffering=0)) for path in files]
    except OSError as error:
        raise CliError(f"cannot read {error.filename}: {error.strerror}") from None
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
