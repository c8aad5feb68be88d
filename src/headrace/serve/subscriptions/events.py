"""Server-sent events: a subscription as an answer to a GET that goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from headrace.serve.errors import RequestUnfit
from headrace.serve.parameter import integer, text
from headrace.serve.route import Answer, Call, Receive, Route, Told
from headrace.serve.scope import READ_VIEW
from headrace.serve.subscriptions.bookmark import CHARS_MAX
from headrace.serve.subscriptions.farewell import farewell, why_of
from headrace.serve.subscriptions.login import bearer
from headrace.serve.subscriptions.subscriber import Gone, Subscriber
from headrace.serve.subscriptions.wanted import LIMIT_MAX, Wanted

__all__ = ["SUBSCRIPTION_ROUTES"]

_CARRIER = "events"
_MEDIA_TYPE = "text/event-stream"
_RETRY = b"retry: 1000\n\n"


async def follow_view(call: Call) -> Answer:
    served, asked = call.served, call.asked
    served.subscriptions.expect_room(_CARRIER, call.caller.token_id)
    known = call.headers.get("last-event-id") or None
    cursor = asked.get("cursor") or known
    if known is not None and len(known) > CHARS_MAX:
        raise RequestUnfit(f"Last-Event-ID must be a text of at most {CHARS_MAX} characters")
    wanted = Wanted(
        call.names["view"],
        *(asked.get(one) for one in ("filter", "prefix", "from", "to", "match", "sort", "limit")),
    )
    subscriber = Subscriber(
        served,
        wanted,
        cursor,
        _CARRIER,
        token=bearer(call.headers),
        token_id=call.caller.token_id,
        # A browser comes again by itself, and could do nothing about a refusal.
        heals="cursor" not in asked,
    )
    await subscriber.prepare()
    return Answer(
        b"",
        media_type=_MEDIA_TYPE,
        headers={"X-Accel-Buffering": "no"},
        stream=lambda receive: _events(call, subscriber, receive),
    )


async def _events(call: Call, subscriber: Subscriber, receive: Receive) -> AsyncGenerator[bytes]:
    subscriptions = call.served.subscriptions
    why = "gone"
    watching = asyncio.create_task(_until_gone(receive, subscriber))
    try:
        # Others may have come since there was room.
        subscriptions.enter(subscriber)
        yield _RETRY
        async with contextlib.aclosing(subscriber.messages()) as messages:
            async for one in messages:
                yield one.event
                subscriber.sent(one)
    except Gone:
        pass
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        why = why_of(error)
        call.failed(error)
        yield farewell(error, subscriber.last_cursor, call.request_id).event
    finally:
        watching.cancel()
        subscriptions.leave(subscriber, why)


async def _until_gone(receive: Receive, subscriber: Subscriber) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    subscriber.end(Gone())


SUBSCRIPTION_ROUTES = (
    Route(
        *("GET", "/v1/views/{view}/changes", READ_VIEW, follow_view, "Follow a view"),
        about="Its rows, or those of a query, and then every change, as server-sent events. The same address takes a"
        " WebSocket, whose first message says what is wanted.",
        named="view",
        parameters=(
            text("view", "The name of a view.", chars_max=249, where="path"),
            text("filter", "Only rows of which this is true; as for reading rows."),
            text("prefix", "Only keys that begin so."),
            text("from", "Only keys from this one on."),
            text("to", "Only keys before this one."),
            text("match", "Only rows with these words; for views with a full-text index."),
            text(
                "sort",
                "The order of the snapshot, and with limit which rows are the first: columns, with a minus in front for"
                " the other direction; then by key.",
                example="-amount,name",
            ),
            integer("limit", "Only the first rows, by sort or by key, as they change.", 1, LIMIT_MAX),
            text("cursor", "Where to go on: of the last message that had one.", chars_max=CHARS_MAX),
        ),
        answers={
            200: Told("Events: hello, snapshot, changes, heartbeat, reset, bye.", media_type=_MEDIA_TYPE)
        },
        problems=(404, 409, 422, 429, 503, 504),
        socket="Subscribe",
    ),
)
