"""SQL over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from headrace.serve.errors import RequestUnfit
from headrace.serve.parameter import choice, duration, text
from headrace.serve.position_json import position_json
from headrace.serve.route import Answer, Body, Call, Receive, Route, Told, json_answer
from headrace.serve.scope import READ_VIEW
from headrace.serve.sql.asking import Asking
from headrace.serve.sql.errors import SqlUnfit
from headrace.serve.sql.following import SqlFollower
from headrace.serve.subscriptions.errors import TooManySubscribers
from headrace.serve.subscriptions.farewell import farewell
from headrace.serve.subscriptions.login import bearer
from headrace.serve.subscriptions.subscriber import Gone
from headrace.serve.token import Reach, Token, token_of

__all__ = ["ARROW", "SQL_ROUTES"]

ARROW = "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"
_PARAMETERS_MAX = 1_000


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: str
    parameters: list[bool | int | float | str | None] = []


_decoder = msgspec.json.Decoder(_Asked)


def _asked(call: Call) -> _Asked:
    try:
        asked = _decoder.decode(call.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestUnfit(
            f"the body is not a statement: {error}", hint='as in {"sql": "SELECT 1"}'
        ) from None
    if len(asked.parameters) > _PARAMETERS_MAX:
        raise RequestUnfit(f"a statement has at most {_PARAMETERS_MAX} parameters")
    if any(isinstance(one, int) and not -(2**63) <= one < 2**63 for one in asked.parameters):
        raise SqlUnfit("a whole number among the parameters has more than 64 bits")
    return asked


async def answer_sql(call: Call) -> Answer:
    asked = _asked(call)
    limits = call.served.limits
    token = Token.told(call.asked["after"]) if "after" in call.asked else None
    deadline = call.began + min(call.asked.get("wait", limits.wait_s_default), limits.wait_s_max)
    form = call.asked.get("format", "json")
    answered = await Asking(call.served, call.caller).answer(
        asked.sql, asked.parameters, form, token, deadline
    )
    positions = {one.name: position_json(one.position) for one in answered.stood}
    headers = {"Cache-Control": "private, no-cache"}
    if answered.stood:
        reached: dict[str, Reach] = {}
        for one in answered.stood:
            reached |= token_of(one.position).topics
        headers["Headrace-Position"] = Token.of(reached).tell()
    if form == "arrow":
        headers["Headrace-Positions"] = msgspec.json.encode(positions).decode()
        return Answer(answered.body, 200, ARROW, headers)
    told: dict[str, Any] = {
        "positions": positions,
        "columns": [{"name": one.name, "type": one.type} for one in answered.columns],
        "rows": msgspec.Raw(answered.body),
    }
    return json_answer(told, headers=headers)


async def follow_sql(call: Call) -> Answer:
    asked, pool = _asked(call), call.served.sql
    _expect_room(call)
    follower = SqlFollower(
        *(call.served, call.caller, bearer(call.headers)),
        *(asked.sql, asked.parameters, call.asked.get("cursor")),
    )
    with pool.followers.held(call.caller.token_id):
        await follower.prepare()
    return Answer(
        b"",
        media_type=EVENTS,
        headers={"X-Accel-Buffering": "no"},
        stream=lambda receive: _results(call, follower, receive),
    )


def _expect_room(call: Call) -> None:
    followers = call.served.sql.followers
    followers.expect_share(call.caller.token_id)
    if followers.is_full:
        raise TooManySubscribers(
            f"too many followed statements (limit {followers.total})",
            hint="come again later, or follow a view; a flow keeps a view of what the statement works out",
        )


async def _results(call: Call, follower: SqlFollower, receive: Receive) -> AsyncGenerator[bytes]:
    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        follower.end()

    call.served.sql.followers.take(call.caller.token_id)
    watching = asyncio.create_task(until_gone())
    try:
        async with contextlib.aclosing(follower.messages()) as messages:
            async for one in messages:
                yield one.event
    except Gone:
        pass
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        call.failed(error)
        yield farewell(error, follower.cursor, call.request_id).event
    finally:
        watching.cancel()
        call.served.sql.followers.give_back(call.caller.token_id)


SQL_ROUTES = (
    Route(
        *("POST", "/v1/sql", READ_VIEW, answer_sql, "Ask with SQL"),
        about="One SELECT, in DuckDB's SQL, over views of any stores; each is a table, and the token must allow to read"
        " all that are named. All rows of a view are of the one position that the answer names for it. Rows are arrays."
        " search('view', 'words') gives the rows of a full-text index that have the words.",
        any_name=True,
        parameters=(
            text(
                "after",
                "A token: of the answer to a write, or of a position; or several, with commas in between. What is read"
                " shows all that they tell of.",
                chars_max=32_000,
            ),
            duration(
                "wait", "How long to wait for that; 2s without it. What takes longer is answered with 504."
            ),
            choice("format", "Of the answer; json without it.", ("json", "arrow")),
        ),
        body=Body("Statement", "A statement, and values for its $1, $2, …"),
        answers={200: Told("Rows, and where the views stood.", "SqlRows")},
        problems=(404, 408, 409, 413, 415, 422, 429, 501, 503, 504),
    ),
    Route(
        *("POST", "/v1/sql/changes", READ_VIEW, follow_sql, "Follow the result of a statement"),
        about="The result, and the whole of it again when it is another one since a view that it reads has moved: as"
        " server-sent events, each of one position per view.",
        any_name=True,
        parameters=(text("cursor", "Of the last result: the same one is not told again.", chars_max=100),),
        body=Body("Statement", "A statement, and values for its $1, $2, …"),
        answers={200: Told("Events: result, same, heartbeat, bye.", media_type=EVENTS)},
        problems=(404, 408, 409, 413, 415, 422, 429, 503, 504),
    ),
)
