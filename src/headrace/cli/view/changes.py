"""``headrace view rebuild`` and ``switch``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import BrokerUnreachable, SwitchRefused, UsageError
from headrace.cli.options import AppName, Data
from headrace.cli.session import Session
from headrace.cli.verb import verb

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.declarations import View
    from headrace.stores.position import Position

__all__ = ["rebuild", "switch"]


@verb(
    "rebuild",
    examples="""
    headrace view rebuild examples.shop:app revenue
    """,
)
def rebuild(
    session: Session,
    app: AppName,
    views: Annotated[list[str], typer.Argument(metavar="VIEW", help="Names of views.")],
    data: Data = None,
) -> None:
    """Request that views are built again from the first offset.

    A running follower starts the rebuild at once; otherwise the next follower does. The old rows are served until the
    new rows have caught up. If records of the log do not fit the schema of a view's topic, the command changes nothing,
    and fails. If no broker responds, the next follower does this check.
    """
    import contextlib

    from headrace.cli.app_loader import load_checked_app, views_of
    from headrace.cli.app_state import view_states
    from headrace.cli.view.history import check_history_of_views
    from headrace.stores.registry import open_writer

    loaded, folder = load_checked_app(app), session.data_dir(data)
    chosen = views_of(loaded, views)
    with contextlib.suppress(BrokerUnreachable):
        check_history_of_views(session, loaded, chosen)
    rows = []
    for view in chosen:
        if not view_states(loaded, view, folder):
            rows.append({"view": view.name, "status": "not built yet; the first follower builds it"})
            continue
        with contextlib.closing(open_writer(view, loaded.name, folder)) as store:
            store.request_rebuild()
        rows.append({"view": view.name, "status": "will be rebuilt"})
    session.out.table(rows)


_POLL_S = 0.2


@verb(
    "switch",
    examples="""
    headrace view switch examples.shop:app revenue revenue_pg
    headrace view switch examples.shop:app revenue revenue_pg --wait 600
    headrace view switch examples.shop:app revenue revenue
    headrace view switch examples.shop:app revenue --back
    """,
)
def switch(
    session: Session,
    app: AppName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that readers use.")],
    to: Annotated[
        str, typer.Argument(metavar="[VIEW]", help="The view that will serve this name; none with --back.")
    ] = "",
    back: Annotated[
        bool,
        typer.Option("--back", help="Serve the rows of the flow's previous generation again."),
    ] = False,
    behind: Annotated[
        bool,
        typer.Option(
            "--behind", help="With --back: also if that generation has read less than the present one."
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            help="Wait at most this many seconds for the view to catch up.",
        ),
    ] = 0.0,
    data: Data = None,
) -> None:
    """Let another view of the same topic serve a name, for example to move to another store.

    Declare a second view in the new store, and follow it. It fills from the first offset while the old view serves.
    When it has caught up, switch. Writers, flows and other views are not affected. Afterwards you can remove the old
    view from the app. To undo a switch, switch the name to the view of the same name.

    With --back, the flow that writes the view's topic switches back to the generation that served before, and with it
    all views of that topic. Flows downstream switch back first. If one of them has no generation of those rows, nothing
    is changed. The present generation is kept.
    """
    import time

    from headrace.cli.app_loader import load_checked_app, views_of
    from headrace.cli.generation import switch_flow_back
    from headrace.client.view_names import names_of
    from headrace.client.view_names import switch as record_switch

    loaded, folder = load_checked_app(app), session.data_dir(data)
    if back == bool(to):
        raise UsageError("set either VIEW or --back", hint="headrace view switch --help shows examples")
    if back:
        (view,) = views_of(loaded, [name])
        flow = loaded.writer_of(view.topic)
        if flow is None:
            raise SwitchRefused(
                f"view {name!r} follows topic {view.topic.name!r}, which no flow writes, so it has no generations",
                hint="only a view of a flow's topic can be switched back",
            )
        session.out.table(switch_flow_back(session, loaded, flow, behind=behind))
        return
    (new,) = views_of(loaded, [to])
    cluster = session.cluster_of(loaded)
    serving = names_of(cluster, loaded.name).get(name, name)
    old = next((view for view in loaded.views if view.name == serving), None)
    if name not in {view.name for view in loaded.views} and serving == name:
        views_of(loaded, [name])
    if old is not None and old is not new:
        _check_same_rows(old, new)
    deadline = time.monotonic() + wait
    while reason := _reason_not_ready(loaded, old, new, folder):
        if time.monotonic() >= deadline:
            raise SwitchRefused(
                f"view {serving!r} still serves {name!r}: {reason}",
                hint="follow the new view (headrace view follow), and wait for it with --wait SECONDS",
            )
        time.sleep(_POLL_S)
    record_switch(cluster, loaded.name, name, to, time.time_ns() // 1_000_000)
    session.out.table([{"name": name, "before": serving, "now": to}])


def _check_same_rows(old: View, new: View) -> None:
    """Fail unless both views have the same rows, because readers expect the same rows under the name."""
    differences = [
        f"{what} {before} and {after}"
        for what, before, after in (
            ("topics", old.topic.name, new.topic.name),
            ("keys", ", ".join(old.key), ", ".join(new.key)),
        )
        if before != after
    ]
    if differences:
        raise SwitchRefused(
            f"views {old.name!r} and {new.name!r} have different {' and different '.join(differences)}",
            hint="switch to a view of the same topic with the same key, or declare a view with a new name",
        )


def _reason_not_ready(app: App, old: View | None, new: View, data: Path) -> str | None:
    from headrace.cli.app_state import view_states

    after = view_states(app, new, data).get("serving")
    if after is None:
        return f"view {new.name!r} does not serve yet"
    before = view_states(app, old, data).get("serving") if old is not None else None
    return None if before is None else _behind(before.position, after.position, new.name)


def _behind(before: Position, after: Position, name: str) -> str | None:
    if after.generation < before.generation:
        return f"view {name!r} is at generation {after.generation}, the serving view at {before.generation}"
    if after.generation > before.generation:
        return None
    if after.generation:
        behind, unit = before.batch - after.batch, "batches"
    else:
        offsets = ((at, after.offsets.get(number, 0)) for number, at in before.offsets.items())
        behind, unit = sum(max(0, old - new) for old, new in offsets), "records"
    return f"view {name!r} is {behind} {unit} behind the serving view" if behind > 0 else None
