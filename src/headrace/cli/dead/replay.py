"""``headrace dead replay``."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.dead.options import DeadName, Places, open_marks, parse_places
from headrace.cli.errors import UsageError
from headrace.cli.parameters import DryRun
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.ops.dead.judge import Result
    from headrace.ops.dead.replay import Replay

__all__ = ["replay"]

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
            ready      --dry-run: it would be written
            written    the record is in its topic again
            already    it was written back before, and is left as it is; --again writes it once more
            cannot     it is not written, and the note says why
            """,
        )
    ],
)
def replay(
    session: Session,
    app: AppName,
    topic: DeadName,
    places: Places = None,
    everything: Annotated[bool, typer.Option("--all", help="Every letter of the topic.")] = False,
    dry_run: DryRun = False,
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that were written back before.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", min=0.1, max=100_000, help="At most so many letters a second."),
    ] = None,
    data: Data = None,
) -> None:
    """Write dead letters back to the topics that they came from, each once.

    A record is written as it came, for everybody who reads the topic, and becomes the newest of its key. Whatever ends
    this in between, the same command again goes on behind what is written.
    """
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.cli.stopping import Stopping
    from headrace.cli.view.options import checked_app
    from headrace.ops.dead.dead_topic import named_dead
    from headrace.ops.dead.replay import Replay, Wanted

    if everything == bool(places):
        raise UsageError("which letters?", hint="name some as PARTITION/OFFSET, or all with --all")
    wanted = Wanted(None if everything else parse_places(places or ()), dry_run, again, rate)
    loaded = checked_app(app)
    dead = named_dead(loaded, topic)
    check_reachable(session.bootstrap)
    cluster = cluster_of(session)
    with contextlib.closing(open_marks(session, data, cluster, loaded)) as marks, Stopping() as stopping:
        made = Replay(cluster, loaded, marks, dead, wanted, SystemClock())
        worker = threading.Thread(target=made.run, name="replay")
        worker.start()
        while not made.ended.wait(_POLL_S):
            if stopping.asked:
                made.cancel()
        worker.join()
        _show(session, made)
    if made.error is not None:
        raise made.error


def _show(session: Session, made: Replay) -> None:
    session.out.table([_row(one) for one in made.results])
    left_off = made.done - len(made.results)
    if left_off > 0:
        session.out.note(f"and {left_off:,} more")
    for line in made.words():
        session.out.note(line)


def _row(one: Result) -> dict[str, object]:
    unfit = f"does not fit today either: {one.unfit}" if one.unfit else ""
    to = one.to
    return {
        "letter": f"{one.letter.partition}/{one.letter.offset}",
        "state": one.state,
        "came_from": str(one.origin) if one.origin else None,
        "to": None if to is None else f"{to.topic}/{to.partition}" if to.offset < 0 else str(to),
        "note": one.why or unfit or None,
    }
