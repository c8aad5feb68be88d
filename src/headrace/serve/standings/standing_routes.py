"""Where the views stand, over HTTP."""

from __future__ import annotations

from importlib.util import find_spec

from headrace.serve.route import Answer, Call, Route, Told, json_answer
from headrace.serve.scope import READ_VIEW

__all__ = ["STANDING_ROUTES"]


async def tell_standings(call: Call) -> Answer:
    served = call.served
    told = await served.standings.look()
    views = [one for name, one in told.items() if call.caller.may(READ_VIEW, name)]
    return json_answer(
        {"app": served.app.name, "sql": _has_sql(), "rows_max": served.limits.rows_max, "views": views},
        headers={"Cache-Control": "private, no-cache"},
    )


def _has_sql() -> bool:
    """Whether the libraries of ``headrace[sql]`` are there."""
    return all(find_spec(name) is not None for name in ("duckdb", "pyarrow"))


STANDING_ROUTES = (
    Route(
        *("GET", "/v1/standings", READ_VIEW, tell_standings, "Where every view stands"),
        about="Of those that the token may read: rows, position, how far behind the end of its topic, dead letters, and"
        " what the last verification found. Rows are counted now and then, so they may be of a moment before.",
        listed=True,
        answers={200: Told("The views.", "Standings")},
        problems=(503, 504),
    ),
)
