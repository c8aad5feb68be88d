"""``headrace view list``."""

from __future__ import annotations

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data

__all__ = ["list_views"]


@verb(
    "list",
    examples="""
    headrace view list examples.shop:app
    headrace view list examples.shop:app --json
    """,
    shared=("as_json", "quiet", "verbose"),
)
def list_views(session: Session, app: AppName, data: Data = None) -> None:
    """List an app's views, what they follow, and how far their stores are.

    No broker is asked; how far behind they are is told by describe. A store that does not answer is told of beside the
    table.
    """
    from headrace.cli.view.options import checked_app, data_dir
    from headrace.cli.view.stored import known_parts, state_of
    from headrace.model.store_place import where_is
    from headrace.views.errors import StoreError

    loaded, where = checked_app(app), data_dir(session, data)
    rows = []
    for view in loaded.views:
        try:
            parts, state = known_parts(loaded, view, where), ""
        except StoreError as error:
            session.out.note(f"view {view.name}: {error.message}")
            parts, state = {}, "unknown"
        serving = parts.get("serving")
        rows.append(
            {
                "view": view.name,
                "topic": view.topic.name,
                "key": list(view.key),
                "state": state or state_of(parts),
                "generation": serving.generation if serving and serving.generation else None,
                "batch": serving.batch if serving and serving.generation else None,
                "dead": serving.dead if serving else None,
                "store": where_is(view, loaded.name, where),
            }
        )
    for view in loaded.computed:
        rows.append(
            {
                "view": view.name,
                "topic": view.topic.name,
                "key": list(view.key),
                "state": "on read",
                "generation": None,
                "batch": None,
                "dead": None,
                "store": where_is(view, loaded.name, where),
            }
        )
    session.out.table(rows, empty="the app has no views")
