"""``headrace dead show``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.dead.options import DeadName, Places, open_marks, parse_places
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data

if TYPE_CHECKING:
    from headrace.ops.dead.letter import Letter
    from headrace.ops.dead.mark import Mark

__all__ = ["show"]

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
    topic: DeadName,
    places: Places = None,
    number: Annotated[
        int, typer.Option("--number", "-n", metavar="N", min=1, max=10_000, help="At most so many letters.")
    ] = 20,
    data: Data = None,
) -> None:
    """Show dead letters: the reason, where each came from, and what it is.

    The newest first, or those at the places that are named. --json has all bytes, in base64 where they are no text.
    """
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.cli.view.options import checked_app
    from headrace.ops.dead.dead_topic import named_dead
    from headrace.ops.dead.judge import Judge
    from headrace.ops.dead.letters import letters_at, newest_letters

    loaded, wanted = checked_app(app), parse_places(places or ())
    dead = named_dead(loaded, topic)
    check_reachable(session.bootstrap)
    cluster = cluster_of(session)
    found: list[Letter] = []
    if wanted:
        found = [*letters_at(cluster, dead.name, wanted)]
    elif cluster.topic(dead.name) is not None:
        found = newest_letters(cluster, dead.name, number).letters
    judge = Judge(cluster, loaded)
    with contextlib.closing(open_marks(session, data, cluster, loaded)) as marks:
        marks.catch_up()
        told = _json if session.out.as_json else _row
        rows = [told(one, marks.find(one.id), judge.why_not(one)) for one in found]
    session.out.table(rows, empty=f"there are no letters in {dead.name}")


def _row(letter: Letter, mark: Mark | None, cannot: str) -> dict[str, Any]:
    value = (letter.value or b"").decode("utf-8", "backslashreplace")
    return {
        "letter": f"{letter.place.partition}/{letter.place.offset}",
        "state": f"written back to {mark.to}" if mark else "cannot go back" if cannot else "waits",
        "came_from": str(letter.origin) if letter.origin else None,
        "reason": letter.reason or letter.exception,
        "value": value if len(value) <= _VALUE_CHARS_MAX else f"{value[:_VALUE_CHARS_MAX]}…",
    }


def _json(letter: Letter, mark: Mark | None, cannot: str) -> dict[str, Any]:
    return {
        "partition": letter.place.partition,
        "offset": letter.place.offset,
        "at_ms": letter.at_ms,
        "reason": letter.reason,
        "exception": letter.exception,
        "origin": letter.origin,
        **_bytes("key", letter.key),
        **_bytes("value", letter.value),
        "headers": [{"name": name, **_bytes("value", data)} for name, data in letter.headers],
        "replayed": mark,
        "cannot": cannot,
    }


def _bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    import base64

    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
