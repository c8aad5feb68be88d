"""``headrace dead``: list and show dead letters, write them back, correct or dismiss them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import UsageError
from headrace.cli.options import AppName, Data, DryRun
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb
from headrace.clock import SystemClock
from headrace.model.rejection import LetterState, Reason

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.ops.dead.letter import Letter
    from headrace.ops.dead.letter_index import LetterIndex, LetterInfo
    from headrace.ops.dead.letter_job import JobRequest, LetterJob
    from headrace.ops.dead.replay_rules import Result

__all__ = ["command"]


DeadTopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A dead-letter topic; list them with headrace dead list.")
]
Letters = Annotated[
    list[str] | None,
    typer.Argument(metavar="PARTITION/OFFSET", help="Dead letters by partition and offset, e.g. 0/7."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Include letters that are not open: replayed, settled or dismissed ones."),
]
_OFFSET_DIGITS_MAX = 18
_STATES = ("Letter states", "\n".join(f"{state.value:<10} {state.text}" for state in LetterState))
_REASONS = ("Reasons", "\n".join(f"{reason.value:<10} {reason.text}" for reason in Reason))
_RESULTS = (
    "Results",
    """
    ready      with --dry-run: the letter would be handled
    written    the record was written to its original topic
    dismissed  the letter was dismissed
    skipped    the letter is not open; --force includes it
    cannot     the record cannot be written; the note gives the reason
    """,
)


def parse_letter_ids(texts: Sequence[str]) -> list[tuple[int, int]]:
    letters = []
    for text in texts:
        partition, _, offset = text.partition("/")
        is_valid = partition.isdecimal() and offset.isdecimal() and len(partition) < 10
        if not is_valid or len(offset) > _OFFSET_DIGITS_MAX:
            raise UsageError(f"{text!r} is not PARTITION/OFFSET", hint="write PARTITION/OFFSET, e.g. 0/7")
        letters.append((int(partition), int(offset)))
    return letters


@contextlib.contextmanager
def open_index(session: Session, data: Path | None, cluster: Cluster, app: App) -> Iterator[LetterIndex]:
    """Open the index of letters. It is stored in the data directory, unless that directory does not exist."""
    from headrace.ops.dead.letter_index import LetterIndex, index_path

    folder = session.data_dir(data)
    path = index_path(folder, app.name) if folder.is_dir() else None
    with contextlib.closing(LetterIndex(path, cluster, app)) as index:
        yield index


@verb(
    "list",
    examples="""
    headrace dead list examples.shop:app
    headrace dead list examples.shop:app --json
    """,
    reference=[_STATES],
)
def list_dead(session: Session, app: AppName, data: Data = None) -> None:
    """List an app's dead-letter topics, and the number of letters in each state.

    Every flow and every view has a dead-letter topic. The list includes Spring's dead-letter topics for the app's
    topics. A record that several flows or views rejected is one letter, in the topic of each.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.ops.dead.dead_topic import dead_topics_in_log
    from headrace.ops.lag.log_snapshot import take_snapshot

    loaded = load_checked_app(app)
    cluster = session.cluster_of(loaded)
    with open_index(session, data, cluster, loaded) as index:
        log = take_snapshot(cluster, index.topics)
        index.catch_up(log)
        counts = index.counts()
        rows = [
            {
                "topic": topic.name,
                "kind": topic.kind,
                "of": topic.owner,
                **{state.value: counts.get(topic.name, {}).get(state, 0) for state in LetterState},
            }
            for topic in dead_topics_in_log(loaded, log)
        ]
    session.out.table(rows, empty="the app has no flows and no views")


_VALUE_CHARS_MAX = 60


@verb(
    "show",
    examples="""
    headrace dead show examples.shop:app revenue.dead
    headrace dead show examples.shop:app revenue.dead --state open -n 5
    headrace dead show examples.shop:app revenue.dead 0/7 --json
    """,
    reference=[_STATES, _REASONS],
)
def show(
    session: Session,
    app: AppName,
    topic: DeadTopicName,
    letters: Letters = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="Maximum number of letters.")
    ] = 20,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="STATE", help="Show only letters in this state, e.g. open (default: all)."
        ),
    ] = None,
    data: Data = None,
) -> None:
    """Show dead letters: the state, the reason, the origin and the record.

    It prints the named letters, or the newest letters first. --json prints whole records with all rejections; bytes
    that are not UTF-8 are printed as base64.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.ops.dead.dead_topic import dead_topic_named
    from headrace.ops.dead.letters import letters_at
    from headrace.ops.dead.replay_rules import ReplayRules

    states = [*LetterState]
    if state is not None and state not in states:
        raise UsageError(f"--state {state!r} is not a state", hint=f"use one of {', '.join(states)}")
    loaded, named = load_checked_app(app), parse_letter_ids(letters or ())
    cluster = session.cluster_of(loaded)
    letter_topic = dead_topic_named(loaded, topic)
    rules = ReplayRules(cluster, loaded, _future_us(session))
    with open_index(session, data, cluster, loaded) as index:
        index.catch_up()
        if not named:
            newest = index.newest(letter_topic.name, limit, [] if state is None else [LetterState(state)])
            named = [(item.partition, item.offset) for item in newest]
        found = {
            (letter.record_id.partition, letter.record_id.offset): letter
            for letter in (letters_at(cluster, letter_topic.name, named) if named else ())
        }
        format_row = _json if session.out.as_json else _row
        rows = [
            format_row(letter, info, rules.refusal(letter))
            for letter in (found[item] for item in dict.fromkeys(named))
            if (info := index.find(letter.id)) is not None
        ]
    session.out.table(rows, empty=f"no letters in {letter_topic.name}")


def _future_us(session: Session) -> int:
    return session.loaded.settings.flow.future_ms * 1_000


def _row(letter: Letter, info: LetterInfo, refusal_text: str) -> dict[str, Any]:
    value = (letter.value or b"").decode("utf-8", "backslashreplace")
    return {
        "letter": f"{letter.record_id.partition}/{letter.record_id.offset}",
        "state": info.state.value,
        "came_from": str(letter.origin) if letter.origin else None,
        "refusals": len(info.refusals),
        "reason": letter.reason.value,
        "message": letter.message or None,
        "note": _note(info, refusal_text),
        "value": value if len(value) <= _VALUE_CHARS_MAX else f"{value[:_VALUE_CHARS_MAX]}…",
    }


def _note(info: LetterInfo, refusal_text: str) -> str | None:
    from headrace.ops.dead.replay_rules import state_text

    if info.record is not None:
        return state_text(info.record)
    return "cannot be written back" if refusal_text else None


def _json(letter: Letter, info: LetterInfo, refusal_text: str) -> dict[str, Any]:
    return {
        "partition": letter.record_id.partition,
        "offset": letter.record_id.offset,
        "at_ms": letter.at_ms,
        "state": info.state.value,
        "reason": letter.reason.value,
        "message": letter.message,
        "exception": letter.exception,
        "origin": letter.origin,
        "refusals": info.refusals,
        **_bytes("key", letter.key),
        **_bytes("value", letter.value),
        "headers": [{"name": name, **_bytes("value", data)} for name, data in letter.headers],
        "change": info.record,
        "cannot": refusal_text,
    }


def _bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    import base64

    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


@verb(
    "replay",
    examples="""
    headrace dead replay examples.shop:app revenue.dead --all --dry-run
    headrace dead replay examples.shop:app revenue.dead --all --rate 100
    headrace dead replay examples.shop:app revenue.dead 0/7 0/9
    """,
    reference=[_RESULTS, _STATES],
)
def replay(
    session: Session,
    app: AppName,
    topic: DeadTopicName,
    letters: Letters = None,
    all_letters: Annotated[bool, typer.Option("--all", help="Replay all open letters of the topic.")] = False,
    dry_run: DryRun = False,
    force: Force = False,
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

    All readers of the topic receive the record. It is unchanged and becomes the newest record of its key. With
    --dry-run, the note of each letter states what its readers would do. After an interruption, run the same command
    again to continue after the last written letter.
    """
    from headrace.ops.dead.letter_job import JobRequest

    named = _named(letters, all_letters=all_letters)
    _run_job(session, app, topic, data, JobRequest(named, dry_run, force, rate))


@verb(
    "correct",
    examples="""
    headrace dead correct examples.shop:app revenue.dead 0/7 --value '{"order": "o7", "pieces": 3}'
    headrace dead correct examples.shop:app revenue.dead 0/7 --value-file order.json --dry-run
    """,
    reference=[_RESULTS],
)
def correct(
    session: Session,
    app: AppName,
    topic: DeadTopicName,
    letter: Annotated[
        str,
        typer.Argument(metavar="PARTITION/OFFSET", help="The dead letter by partition and offset, e.g. 0/7."),
    ],
    value: Annotated[str | None, typer.Option("--value", metavar="TEXT", help="The corrected value.")] = None,
    value_file: Annotated[
        Path | None,
        typer.Option(
            "--value-file", metavar="FILE", help="Read the corrected value from a file; - for stdin."
        ),
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
    data: Data = None,
) -> None:
    """Write a dead letter back with a corrected value.

    The value must match the schema of the topic. It also determines the key. The letter keeps the original value.
    """
    from headrace.ops.dead.letter_job import JobRequest

    if (value is None) == (value_file is None):
        raise UsageError("no corrected value, or two", hint="use --value TEXT or --value-file FILE")
    raw = _read_value(value_file) if value is None and value_file is not None else (value or "").encode()
    request = JobRequest(parse_letter_ids([letter]), dry_run, force, value=raw)
    _run_job(session, app, topic, data, request)


def _read_value(path: Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read().rstrip(b"\n")
    try:
        return path.read_bytes().rstrip(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


@verb(
    "dismiss",
    examples="""
    headrace dead dismiss examples.shop:app revenue.dead 0/7 --reason "sent by a test"
    headrace dead dismiss examples.shop:app revenue.dead --all --reason "of the old tills" --dry-run
    """,
    reference=[_RESULTS, _STATES],
)
def dismiss(
    session: Session,
    app: AppName,
    topic: DeadTopicName,
    letters: Letters = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why the records are not needed.")
    ] = "",
    all_letters: Annotated[
        bool, typer.Option("--all", help="Dismiss all open letters of the topic.")
    ] = False,
    dry_run: DryRun = False,
    force: Force = False,
    data: Data = None,
) -> None:
    """Dismiss dead letters whose records are not needed.

    Dismissed letters stay in the topic, but no alert counts them, and a replay of all letters skips them.
    """
    from headrace.ops.dead.letter_job import JobRequest

    if not reason.strip():
        raise UsageError("a dismissal needs a reason", hint='add --reason "…"')
    named = _named(letters, all_letters=all_letters)
    _run_job(session, app, topic, data, JobRequest(named, dry_run, force, dismissal=reason.strip()))


def _named(letters: list[str] | None, *, all_letters: bool) -> list[tuple[int, int]] | None:
    if all_letters == bool(letters):
        raise UsageError(
            "name letters, or use --all, but not both", hint="write PARTITION/OFFSET, e.g. 0/7, or --all"
        )
    return None if all_letters else parse_letter_ids(letters or ())


_POLL_S = 0.05


def _run_job(session: Session, app: str, topic: str, data: Path | None, request: JobRequest) -> None:
    from headrace.cli.app_loader import load_checked_app
    from headrace.cli.interrupt import Interrupt
    from headrace.ops.dead.dead_topic import dead_topic_named
    from headrace.ops.dead.letter_job import LetterJob

    loaded = load_checked_app(app)
    cluster = session.cluster_of(loaded)
    letter_topic = dead_topic_named(loaded, topic)
    with open_index(session, data, cluster, loaded) as index, Interrupt() as interrupt:
        future_us = _future_us(session)
        job = LetterJob(cluster, loaded, index, letter_topic, request, SystemClock(), future_us)
        worker = threading.Thread(target=job.run, name="dead letters")
        worker.start()
        while not job.ended.wait(_POLL_S):
            if interrupt.requested:
                job.cancel()
        worker.join()
        _print_results(session, job)
    if job.error is not None:
        raise job.error


def _print_results(session: Session, job: LetterJob) -> None:
    if job.error is not None and not job.results:
        return
    session.out.table([_result_row(result) for result in job.results])
    omitted = job.done - len(job.results)
    if omitted > 0:
        session.out.note(f"and {omitted:,} more")
    for line in job.summary():
        session.out.note(line)


def _result_row(result: Result) -> dict[str, object]:
    to = result.to
    outcomes = [
        f"{item.reader} {item.outcome}{f': {item.note}' if item.note else ''}" for item in result.readers
    ]
    return {
        "letter": f"{result.letter.partition}/{result.letter.offset}",
        "state": result.state,
        "came_from": str(result.origin) if result.origin else None,
        "to": None if to is None else f"{to.topic}/{to.partition}" if to.offset < 0 else str(to),
        "note": result.why or "; ".join(outcomes) or None,
    }


def command() -> CommandGroup:
    verbs = [list_dead, show, replay, correct, dismiss]
    return command_group("dead", "List, show, replay, correct and dismiss dead letters.", verbs)
