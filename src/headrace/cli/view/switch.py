"""``headrace view switch``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import SwitchRefused
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.view import View
    from headrace.views.reader import Known

__all__ = ["switch"]

_LOOK_S = 0.2


@verb(
    "switch",
    examples="""
    headrace view switch examples.shop:app revenue revenue_pg
    headrace view switch examples.shop:app revenue revenue_pg --wait 600
    headrace view switch examples.shop:app revenue revenue
    """,
)
def switch(
    session: Session,
    app: AppName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="By which readers ask.")],
    to: Annotated[str, typer.Argument(metavar="VIEW", help="The view that answers from now on.")],
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="Wait so long until it has come as far.")
    ] = 0.0,
    data: Data = None,
) -> None:
    """Replace a store: have a name answered by another view of the same topic.

    Declare the view in its new store beside the old one, and let it be followed: it fills from the first offset while
    the old one serves. When it has come as far, switch. Writers, flows and the other views notice nothing. Afterwards
    the old view may be taken out of the app; switching a name to itself takes the switch back.
    """
    import time

    from headrace.cli.settings import cluster_of
    from headrace.cli.view.options import checked_app, data_dir, views_of
    from headrace.client.names import names_of
    from headrace.client.names import switch as write

    loaded, where = checked_app(app), data_dir(session, data)
    (new,) = views_of(loaded, [to])
    cluster = cluster_of(session)
    serving = names_of(cluster, loaded.name).get(name, name)
    old = next((view for view in loaded.views if view.name == serving), None)
    if name not in {view.name for view in loaded.views} and serving == name:
        views_of(loaded, [name])
    if old is not None and old is not new:
        _expect_same(old, new)
    deadline = time.monotonic() + wait
    while why := _why_not(loaded, old, new, where):
        if time.monotonic() >= deadline:
            raise SwitchRefused(
                f"{name!r} is still answered by view {serving!r}: {why}",
                hint="let it be followed (headrace view follow), and wait for it with --wait SECONDS",
            )
        time.sleep(_LOOK_S)
    write(cluster, loaded.name, name, to, time.time_ns() // 1_000_000)
    session.out.table([{"name": name, "before": serving, "now": to}])


def _expect_same(old: View, new: View) -> None:
    """A reader must find the same rows under the name as before."""
    told = [
        f"{what} {before} and {after}"
        for what, before, after in (
            ("topics", old.topic.name, new.topic.name),
            ("keys", ", ".join(old.key), ", ".join(new.key)),
        )
        if before != after
    ]
    if told:
        raise SwitchRefused(
            f"views {old.name!r} and {new.name!r} have different {' and different '.join(told)}",
            hint="a name is switched to a view of the same rows; another read model has a name of its own",
        )


def _why_not(app: App, old: View | None, new: View, data: Path) -> str | None:
    from headrace.cli.view.stored import known_parts

    after = known_parts(app, new, data).get("serving")
    if after is None:
        return f"view {new.name!r} does not serve yet"
    before = known_parts(app, old, data).get("serving") if old is not None else None
    return None if before is None else _behind(before, after, new.name)


def _behind(before: Known, after: Known, name: str) -> str | None:
    if after.generation < before.generation:
        return f"view {name!r} is at generation {after.generation}, and what serves at {before.generation}"
    if after.generation > before.generation:
        return None
    if after.generation:
        behind, what = before.batch - after.batch, "batches"
    else:
        offsets = ((at, after.offsets.get(number, 0)) for number, at in before.offsets.items())
        behind, what = sum(max(0, old - new) for old, new in offsets), "records"
    return f"view {name!r} is {behind} {what} behind what serves" if behind > 0 else None
