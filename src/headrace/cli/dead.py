"""``headrace dead``: list, show and replay dead letters. A replay writes a letter back to its original topic."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import UsageError
from headrace.cli.options import AppName, Data, DryRun
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.ops.dead.letter import Letter
    from headrace.ops.dead.marks import Mark, Marks
    from headrace.ops.dead.replay import Replay
    from headrace.ops.dead.replay_rules import Result

__all__ = ["command"]


DeadTopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A dead-letter topic; list them with headrace dead list.")
]
Letters = Annotated[
    list[str] | None,
    typer.Argument(metavar="PARTITION/OFFSET", help="Dead letters by partition and offset, e.g. 0/7."),
]
_OFFSET_DIGITS_MAX = 18


def parse_letter_ids(texts: Sequence[str]) -> list[tuple[int, int]]:
    letters = []
    for text in texts:
        partition, _, offset = text.partition("/")
        is_valid = partition.isdecimal() and offset.isdecimal() and len(partition) < 10
        if not is_valid or len(offset) > _OFFSET_DIGITS_MAX:
            raise UsageError(f"{text!r} is not PARTITION/OFFSET", hint="write PARTITION/OFFSET, e.g. 0/7")
        letters.append((int(partition), int(offset)))
    return letters


def open_marks(session: Session, data: Path | None, cluster: Cluster, app: App) -> Marks:
    """Open the index of replayed letters. It is stored in the data directory, unless that directory does not exist."""
    from headrace.ops.dead.marks import Marks, marks_path

    folder = session.data_dir(data)
    return Marks(marks_path(folder, app.name) if folder.is_dir() else None, cluster, app.name)


@verb(
    "list",
    examples="""
    headrace dead list examples.shop:app
    headrace dead list examples.shop:app --json
    """,
)
def list_dead(session: Session, app: AppName, data: Data = None) -> None:
    """List an app's dead-letter topics and the number of letters in each.

    Every flow and every view has a dead-letter topic. The list includes Spring's dead-letter topics for the app's
    topics.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.ops.dead.dead_topic import LetterCounts, dead_topics_in_log

    loaded = load_checked_app(app)
    cluster = session.cluster()
    with contextlib.closing(open_marks(session, data, cluster, loaded)) as marks:
        topics, bounds = dead_topics_in_log(cluster, loaded)
        marks.catch_up()
        replayed, counts = marks.counts(), LetterCounts(cluster)
        rows = []
        for topic in topics:
            letters, exact = counts.count(topic.name, bounds)
            row = {"topic": topic.name, "kind": topic.kind, "of": topic.owner, "letters": letters}
            rows.append({**row, "exact": exact, "replayed": replayed.get(topic.name, 0)})
    session.out.table(rows, empty="the app has no flows and no views")


_VALUE_CHARS_MAX = 60


@verb(
    "show",
    examples="""
    headrace dead show examples.shop:app revenue.dead
    headrace dead show examples.shop:app revenue.dead 0/7 --json
    """,
)
def show(
    session: Session,
    app: AppName,
    topic: DeadTopicName,
    letters: Letters = None,
    number: Annotated[
        int, typer.Option("--number", "-n", metavar="N", min=1, max=10_000, help="Maximum number of letters.")
    ] = 20,
    data: Data = None,
) -> None:
    """Show dead letters: the reason, the origin and the record.

    It prints the named letters, or the newest letters first. --json prints whole records; bytes that are not UTF-8 are
    printed as base64.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.ops.dead.dead_topic import dead_topic_named
    from headrace.ops.dead.letters import letters_at, newest_letters
    from headrace.ops.dead.replay_rules import ReplayRules

    loaded, request = load_checked_app(app), parse_letter_ids(letters or ())
    letter_topic = dead_topic_named(loaded, topic)
    cluster = session.cluster()
    selected: list[Letter] = []
    if request:
        selected = [*letters_at(cluster, letter_topic.name, request)]
    elif cluster.topic(letter_topic.name) is not None:
        selected = newest_letters(cluster, letter_topic.name, number).letters
    rules = ReplayRules(cluster, loaded)
    with contextlib.closing(open_marks(session, data, cluster, loaded)) as marks:
        marks.catch_up()
        format_row = _json if session.out.as_json else _row
        rows = [format_row(letter, marks.find(letter.id), rules.refusal(letter)) for letter in selected]
    session.out.table(rows, empty=f"no letters in {letter_topic.name}")


def _row(letter: Letter, mark: Mark | None, refusal_text: str) -> dict[str, Any]:
    value = (letter.value or b"").decode("utf-8", "backslashreplace")
    return {
        "letter": f"{letter.record_id.partition}/{letter.record_id.offset}",
        "state": f"replayed to {mark.to}" if mark else "cannot be replayed" if refusal_text else "waiting",
        "came_from": str(letter.origin) if letter.origin else None,
        "reason": letter.reason or letter.exception,
        "value": value if len(value) <= _VALUE_CHARS_MAX else f"{value[:_VALUE_CHARS_MAX]}…",
    }


def _json(letter: Letter, mark: Mark | None, refusal_text: str) -> dict[str, Any]:
    return {
        "partition": letter.record_id.partition,
        "offset": letter.record_id.offset,
        "at_ms": letter.at_ms,
        "reason": letter.reason,
        "exception": letter.exception,
        "origin": letter.origin,
        **_bytes("key", letter.key),
        **_bytes("value", letter.value),
        "headers": [{"name": name, **_bytes("value", data)} for name, data in letter.headers],
        "replayed": mark,
        "cannot": refusal_text,
    }


def _bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    import base64

    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


_POLL_S = 0.05


@verb(
    "replay",
    examples="""
    headrace dead replay examples.shop:app revenue.dead --all --dry-run
    headrace dead replay examples.shop:app revenue.dead --all --rate 100
    headrace dead replay examples.shop:app revenue.dead 0/7 0/9
    """,
    reference=[
        (
            "States",
            """
            ready      with --dry-run: the letter would be written
            written    the letter was written to its original topic
            already    the letter was replayed before and is skipped; --again writes it once more
            cannot     the letter cannot be written; the note gives the reason
            """,
        )
    ],
)
def replay(
    session: Session,
    app: AppName,
    topic: DeadTopicName,
    letters: Letters = None,
    all_letters: Annotated[bool, typer.Option("--all", help="Replay all letters of the topic.")] = False,
    dry_run: DryRun = False,
    again: Annotated[
        bool, typer.Option("--again", help="Include letters that were replayed before.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="N",
            min=0.1,
            max=100_000,
            help="Maximum letters per second (default: no limit).",
        ),
    ] = None,
    data: Data = None,
) -> None:
    """Write dead letters back to their original topics, each letter once.

    All readers of the topic receive the record. It is unchanged and becomes the newest record of its key. After an
    interruption, run the same command again to continue after the last written letter.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.cli.interrupt import Interrupt
    from headrace.ops.dead.dead_topic import dead_topic_named
    from headrace.ops.dead.replay import Replay, ReplayRequest

    if all_letters == bool(letters):
        raise UsageError(
            "name letters, or use --all, but not both", hint="write PARTITION/OFFSET, e.g. 0/7, or --all"
        )
    request = ReplayRequest(None if all_letters else parse_letter_ids(letters or ()), dry_run, again, rate)
    loaded = load_checked_app(app)
    letter_topic = dead_topic_named(loaded, topic)
    cluster = session.cluster()
    with contextlib.closing(open_marks(session, data, cluster, loaded)) as marks, Interrupt() as interrupt:
        job = Replay(cluster, loaded, marks, letter_topic, request, SystemClock())
        worker = threading.Thread(target=job.run, name="replay")
        worker.start()
        while not job.ended.wait(_POLL_S):
            if interrupt.requested:
                job.cancel()
        worker.join()
        _print_results(session, job)
    if job.error is not None:
        raise job.error


def _print_results(session: Session, job: Replay) -> None:
    session.out.table([_result_row(result) for result in job.results])
    omitted = job.done - len(job.results)
    if omitted > 0:
        session.out.note(f"and {omitted:,} more")
    for line in job.summary():
        session.out.note(line)


def _result_row(result: Result) -> dict[str, object]:
    unfit = f"still does not match the schema: {result.unfit}" if result.unfit else ""
    to = result.to
    return {
        "letter": f"{result.letter.partition}/{result.letter.offset}",
        "state": result.state,
        "came_from": str(result.origin) if result.origin else None,
        "to": None if to is None else f"{to.topic}/{to.partition}" if to.offset < 0 else str(to),
        "note": result.why or unfit or None,
    }


def command() -> CommandGroup:
    return command_group("dead", "List, show and replay dead letters.", [list_dead, show, replay])
