"""``headrace dead list``."""

from __future__ import annotations

import contextlib

from headrace.cli.dead.options import open_marks
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data

__all__ = ["list_dead"]


@verb(
    "list",
    examples="""
    headrace dead list examples.shop:app
    headrace dead list examples.shop:app --json
    """,
)
def list_dead(session: Session, app: AppName, data: Data = None) -> None:
    """List an app's topics of dead letters, and how many each has.

    One of each flow and of each view, and those that Spring made for a topic of the app.
    """
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.cli.view.options import checked_app
    from headrace.ops.dead.dead_topic import look_at_dead
    from headrace.ops.dead.letter_counts import LetterCounts

    loaded = checked_app(app)
    check_reachable(session.bootstrap)
    cluster = cluster_of(session)
    with contextlib.closing(open_marks(session, data, cluster, loaded)) as marks:
        topics, look = look_at_dead(cluster, loaded)
        marks.catch_up()
        replayed, counts = marks.counts(), LetterCounts(cluster)
        rows = []
        for one in topics:
            letters, exact = counts.count(one.name, look)
            told = {"topic": one.name, "kind": one.kind, "of": one.of, "letters": letters}
            rows.append({**told, "exact": exact, "replayed": replayed.get(one.name, 0)})
    session.out.table(rows, empty="the app has no flows and no views")
