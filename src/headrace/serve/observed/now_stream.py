"""Server-sent events: the document of now, again and again; each is written once for all who follow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from headrace.serve.errors import TooBusy
from headrace.serve.route import Answer, Call, Receive
from headrace.serve.scope import OPERATIONS
from headrace.serve.subscriptions.login import bearer

__all__ = ["EVERY_MS", "MEDIA_TYPE", "follow_now"]

MEDIA_TYPE = "text/event-stream"
EVERY_MS = (50, 60_000, 1_000)
"""At least, at most, and by default."""
_RETRY = b"retry: 1000\n\n"
_BEAT = b": still here\n\n"


async def follow_now(call: Call) -> Answer:
    streams = call.served.observed.streams
    streams.expect_share(call.caller.token_id)
    if streams.is_full:
        raise TooBusy(f"too many streams (limit {streams.total})", hint="ask for /v1/app/now instead")
    return Answer(
        b"",
        media_type=MEDIA_TYPE,
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"},
        stream=lambda receive: _events(call, receive),
    )


async def _events(call: Call, receive: Receive) -> AsyncGenerator[bytes]:
    observed, clock = call.served.observed, call.served.clock
    every_s = call.asked.get("every_ms", EVERY_MS[2]) / 1_000
    beat_s = call.served.limits.heartbeat_s
    observed.streams.take(call.caller.token_id)
    gone = asyncio.create_task(_until_gone(receive))
    try:
        yield _RETRY
        sent, sent_s = 0, float("-inf")
        heard_s = clock.steady()
        while not observed.draining and not gone.done() and _may(call):
            now, latest = clock.steady(), observed.latest
            # A sample comes a moment sooner or later than asked for: that is no reason to skip it.
            if latest is not None and latest.number != sent and now - sent_s >= every_s * 0.9:
                sent, sent_s, heard_s = latest.number, now, now
                yield b"data: " + latest.encoded + b"\n\n"
            elif now - heard_s >= beat_s:
                heard_s = now
                yield _BEAT
            waiting = asyncio.create_task(observed.next(min(beat_s, max(every_s, 1.0))))
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
    finally:
        gone.cancel()
        observed.streams.give_back(call.caller.token_id)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _may(call: Call) -> bool:
    """A token that was revoked ends it; so does the first that is made, for those who came without."""
    tokens, text = call.served.tokens, bearer(call.headers)
    if text is None:
        return not tokens.are_needed()
    caller = tokens.caller(text)
    return caller is not None and caller.may(OPERATIONS)
