"""Views: what there is, and their rows."""

from __future__ import annotations

import urllib.parse
from typing import Any

import msgspec

from headrace.model.schema_json import fields_to_json
from headrace.model.store import OnRead, SQLite
from headrace.model.view import View
from headrace.serve.cursor import Cursor
from headrace.serve.errors import NotThere, RequestUnfit
from headrace.serve.key_text import key_of
from headrace.serve.parameter import Parameter, duration, integer, text, truth
from headrace.serve.position_json import position_json
from headrace.serve.route import Answer, Call, Route, Told, json_answer
from headrace.serve.row_page import RowPage
from headrace.serve.scope import READ_VIEW
from headrace.serve.token import Token
from headrace.serve.told_position import told_position
from headrace.serve.waiting import late
from headrace.views.asking import Ask
from headrace.views.position import Standing
from headrace.views.question import Asked, Question
from headrace.views.redis.row_text import row_text

__all__ = ["VIEW_ROUTES"]

_QUESTION = ("filter", "sort", "prefix", "from", "to", "match")


async def list_views(call: Call) -> Answer:
    served = call.served
    names = [name for name in served.views.names if call.caller.may(READ_VIEW, name)]
    found = [_declared(name, served.views.answering(name)) for name in names]
    return json_answer({"app": served.app.name, "views": found})


async def describe_view(call: Call) -> Answer:
    served, name = call.served, call.names["view"]

    view = served.views.answering(name)
    standing = await _standing(call, view)
    lateness = await served.lateness.of(view.name)
    told = {**_declared(name, view), "state": "serving" if standing else "not serving", **lateness}
    if standing is None:
        return json_answer({**told, "position": None, "columns": []})
    columns = [
        {**one, "key": one["name"] in standing.shape.key} for one in fields_to_json(standing.shape.fields)
    ]
    told |= {"position": position_json(standing.position), "columns": columns}
    if not isinstance(view.store, OnRead):
        told["dead"] = standing.position.dead
    return json_answer(told, headers=told_position(standing).headers)


async def read_rows(call: Call) -> Answer:
    served, name = call.served, call.names["view"]
    limit = min(call.asked.get("limit", served.limits.rows_default), served.limits.rows_max)
    same = bool(call.asked.get("same", False))
    if "cursor" in call.asked:
        if any(one in call.asked for one in _QUESTION):
            raise RequestUnfit(f"cursor has the question in it: leave out {', '.join(_QUESTION)}")
        page = RowPage(Cursor.told(call.asked["cursor"], name), limit, same)
    else:
        page = RowPage.first(name, dict(call.asked), limit, same=same)
    view, known = await _begin(call)
    if known is not None:
        return known
    asked = await _ask(call, view, page.question)
    path = f"/v1/views/{urllib.parse.quote(name, safe='')}/rows"
    told = page.answer(path, asked, served.limits.answer_bytes_max)
    standing = asked.standing
    link = {"Link": f'<{told["next"]}>; rel="next"'} if "next" in told else {}
    answer = json_answer(told, headers={**told_position(standing).headers, **link})
    return _kept(call, view, answer)


async def read_row(call: Call) -> Answer:
    view, known = await _begin(call)
    if known is not None:
        return known
    asked = await _ask(
        call, view, lambda shape: Question(1, key=key_of(shape, call.names["key"])), by_key=True
    )
    standing = asked.standing
    at = told_position(standing)
    headers = at.headers
    told: dict[str, Any] = {"view": call.names["view"], "position": at.json}
    if not asked.rows:
        # Something that was not there may come: it has a position too.
        raise NotThere(
            f"view {call.names['view']!r} has no row with this key",
            hint="see what there is: GET /v1/views/{view}/rows",
            members=told,
            headers=headers,
        )
    row = msgspec.Raw(row_text(standing.shape).value(asked.rows[0]))
    return _kept(call, view, json_answer({**told, "row": row}, headers=headers))


async def _begin(call: Call) -> tuple[View, Answer | None]:
    """The view that answers, once it has come as far as was asked; and an answer that is known without asking: 304 if
    the caller has what it shows, or one that was given before and still holds.
    """
    served = call.served
    view = served.views.answering(call.names["view"])
    token = _token(call)
    if token is not None:
        served.coverage.expect_about(view, token)
        await _until(call, view, token)
    known = call.headers.get("if-none-match")
    if known is not None or view.cached:
        standing = await _standing(call, view)
        if (
            standing is not None
            and not standing.fault
            and served.waiting.covers(view, standing.position, token)
        ):
            headers = told_position(standing).headers
            if known is not None and headers["ETag"] in {one.strip() for one in known.split(",")}:
                return view, Answer(b"", 304, headers=headers)
            return view, served.answers.find(view.name, _question(call), headers["ETag"])
    return view, None


def _kept(call: Call, view: View, answer: Answer) -> Answer:
    if view.cached:
        call.served.answers.keep(view.name, _question(call), answer.headers["ETag"], answer)
    return answer


def _question(call: Call) -> str:
    """All that an answer follows from, besides where the view is."""
    asked = sorted((name, one) for name, one in call.asked.items() if name not in ("after", "wait"))
    return msgspec.json.encode([call.route.path, sorted(call.names.items()), asked]).decode()


async def _standing(call: Call, view: View) -> Standing | None:
    served = call.served
    return await served.work.run(lambda: served.views.standing(view), served.limits.read_s, view.store)


async def _ask(call: Call, view: View, ask: Ask, *, by_key: bool = False) -> Asked:
    """Also by what is read itself: a store may have been put back to an earlier position meanwhile."""
    served, token, deadline = call.served, _token(call), _deadline(call)
    limit_s = served.limits.read_s
    in_file = by_key and isinstance(view.store, SQLite)
    while True:
        with served.traces.step(f"ask {view.name}", _traced(view), "client") as span:
            if in_file and served.work.is_quick(view.store):
                asked = served.work.at_once(lambda: served.views.ask(view, ask, limit_s), view.store)
            else:
                asked = await served.work.run(
                    lambda: served.views.ask(view, ask, limit_s), limit_s, view.store
                )
            position = asked.standing.position
            span.note({"headrace.rows": len(asked.rows)})
            if position.generation:
                span.note({"headrace.generation": position.generation, "headrace.batch": position.batch})
        if served.waiting.covers(view, asked.standing.position, token):
            return asked
        assert token is not None
        if served.clock.steady() > deadline:
            raise late(view, asked.standing.position)
        await _until(call, view, token)


async def _until(call: Call, view: View, token: Token) -> None:
    with call.served.traces.step(f"wait {view.name}", _traced(view)):
        await call.served.waiting.until(view, token, _deadline(call))


def _traced(view: View) -> dict[str, str]:
    return {"headrace.view": view.name, "db.system.name": type(view.store).__name__.lower()}


def _token(call: Call) -> Token | None:
    return Token.told(call.asked["after"]) if "after" in call.asked else None


def _deadline(call: Call) -> float:
    """From when the request was understood."""
    limits = call.served.limits
    wait_s = min(call.asked.get("wait", limits.wait_s_default), limits.wait_s_max)
    return call.began + float(wait_s)


def _declared(name: str, view: View) -> dict[str, Any]:
    return {
        "view": name,
        "answered_by": view.name,
        "topic": view.topic.name,
        "key": list(view.key),
        "store": type(view.store).__name__.lower(),
    }


_VIEW = text("view", "The name of a view.", chars_max=249, where="path")
_AFTER = text(
    "after",
    "A token: of the answer to a write, or of a position; or several, with commas in between. What is read shows all"
    " that they tell of.",
    chars_max=32_000,
)
_WAIT = duration("wait", "How long to wait for that; 2s without it. What takes longer is answered with 504.")
_ROW_PARAMETERS: tuple[Parameter, ...] = (
    _VIEW,
    text(
        "prefix", "Only keys that begin so; of a key of several fields, a JSON object of the first of them."
    ),
    text("from", "Only keys from this one on."),
    text("to", "Only keys before this one."),
    text(
        "filter",
        "Only rows of which this is true: columns compared by =, !=, <, <=, >, >=, in (...), startswith, with and, or,"
        " not and parentheses. Texts are in double quotes.",
        example='amount >= 10 and region in ("eu", "us")',
    ),
    text(
        "sort", "Columns, with a minus in front for the other direction; then by key.", example="-amount,name"
    ),
    text("match", "Only rows with these words, the best first; for views with a full-text index."),
    integer("limit", "At most so many rows.", 1, 100_000, 100),
    text("cursor", "Where the next page begins, as the link named next has it.", chars_max=16_000),
    truth("same", "Whether a page at another position than the first is refused, with 409."),
    _AFTER,
    _WAIT,
)
_LATE = (409, 422, 503, 504)

VIEW_ROUTES = (
    Route(
        *("GET", "/v1/views", READ_VIEW, list_views, "List the views"),
        about="Those that the token may read.",
        listed=True,
        answers={200: Told("The views.", "ViewList")},
        problems=(503,),
    ),
    Route(
        *("GET", "/v1/views/{view}", READ_VIEW, describe_view, "Describe a view"),
        about="Its columns, its position, and how far it is behind the log.",
        named="view",
        parameters=(_VIEW,),
        answers={200: Told("The view.", "View")},
        problems=(404, 503, 504),
    ),
    Route(
        *("GET", "/v1/views/{view}/rows", READ_VIEW, read_rows, "Read a view's rows"),
        about="In the order of their key, or as sort says, a page at a time. All rows of a page are of one position.",
        named="view",
        parameters=_ROW_PARAMETERS,
        answers={200: Told("A page of rows.", "Rows"), 304: Told("The view is where If-None-Match says.")},
        problems=(404, *_LATE),
    ),
    Route(
        *("GET", "/v1/views/{view}/rows/{key:path}", READ_VIEW, read_row, "Read one row"),
        named="view",
        parameters=(
            _VIEW,
            text("key", "The key, as the log writes it.", where="path"),
            _AFTER,
            _WAIT,
        ),
        answers={200: Told("The row.", "Row"), 304: Told("The view is where If-None-Match says.")},
        problems=(404, *_LATE),
    ),
)
