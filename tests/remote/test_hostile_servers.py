"""Foreign, broken and hostile servers: every call ends in time, with an error that has the reason."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, HeadraceError
from headrace.model.errors import ValueDoesNotFit
from headrace.remote import (
    AsyncRemote,
    Busy,
    Closed,
    InvalidResponse,
    NotLoggedIn,
    OutcomeUnknown,
    Remote,
    RemoteError,
    ServerFault,
    Unreachable,
)
from headrace.remote.columns import RowReader
from headrace.remote.exchange import Failed, Pause, Reply, Request, RetryPolicy, send_with_retries
from headrace.remote.queries import RowQuery
from headrace.remote.subscription import Ended, Subscription
from tests.remote.scripted_server import ScriptedServer, answer, scripted

TOKEN = "hr_" + "s3cret" * 7
POSITION = {"token": "t", "topic": "x", "offsets": {"0": 1}}
WRITTEN = json.dumps({"topic": "x", "records": [{"partition": 0, "offset": 0}], "token": "t"}).encode()
PAGE = json.dumps({"position": POSITION, "rows": [], "next": "/v1/views/v/rows?again"}).encode()


def _client_of(server: ScriptedServer, **options: Any) -> Remote:
    return Remote(server.url, token=TOKEN, **{"patience_s": 0.2, "wait_s": 0.2, **options})


def _traceback_text(error: BaseException) -> str:
    """Format the error and its causes as tracebacks with the local variables of all frames."""
    seen, text, pending_errors = set(), "", [error]
    while pending_errors:
        current = pending_errors.pop()
        if id(current) not in seen:
            seen.add(id(current))
            text += "".join(
                traceback.TracebackException.from_exception(current, capture_locals=True).format()
            )
            pending_errors += [
                cause for cause in (current.__cause__, current.__context__) if cause is not None
            ]
    return text


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (answer(body=b"<html>"), InvalidResponse),
        (answer(body=b'{"views": 7}'), InvalidResponse),
        (answer(body=b'{"app":"a","views":[{"view":1}]}'), InvalidResponse),
        (answer(body=b"[" * 100_000), InvalidResponse),
        (answer(body=b"\xff\xfe"), InvalidResponse),
        (answer(204, b""), InvalidResponse),
        (answer(302, b"", Location="http://elsewhere.example/?secret=x"), InvalidResponse),
        (answer(304, b""), InvalidResponse),
        (answer(body=gzip.compress(b"{}"), Content_Encoding="gzip"), InvalidResponse),
        (answer(401, b"no"), NotLoggedIn),
        (answer(500, b"null"), ServerFault),
        (answer(503, b'{"code":7,"detail":[],"next":{}}'), Busy),
        (answer(429, b"", Retry_After="9999999999999999"), Busy),
        (
            answer(
                503, b"", Retry_After="Mon, 16 Nov 2026 10:00:10 GMT", Date="Mon, 16 Nov 2026 10:00:00 GMT"
            ),
            Busy,
        ),
        (answer(599, b"x" * 300_000), ServerFault),
        (answer(length=50), Unreachable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", Unreachable),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 300_000, Unreachable),
        (b"\x16\x03\x01 what is this", Unreachable),
        (b"", Unreachable),
    ],
)
def test_an_invalid_response_is_an_error_with_a_hint_and_without_the_token(
    script: bytes, kind: type[RemoteError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with scripted(lambda *_: [script]) as server, _client_of(server) as remote:
        with pytest.raises(kind) as raised:
            remote.views()
        assert type(raised.value) is kind
        assert raised.value.hint
        assert raised.value.code.startswith("HR-REMOTE")
        assert TOKEN not in _traceback_text(raised.value) + caplog.text
        assert "secret=x" not in str(raised.value)
        assert all(TOKEN.encode() in request for request in server.requests)
        with pytest.raises(RemoteError) as second_error:
            next(remote.view("v").changes(cursor="c")) if kind in (
                InvalidResponse,
                NotLoggedIn,
            ) else remote.views()
        assert TOKEN not in _traceback_text(second_error.value)


def test_retry_after_is_honoured_within_the_retry_limit() -> None:
    now = [0.0]

    class DrivenClock:
        def now_ms(self) -> int:
            raise AssertionError("the wall clock may jump and must not be read")

        def steady(self) -> float:
            return now[0]

    conversation = send_with_retries(Request("GET", "/v1/views"), RetryPolicy(DrivenClock(), 10))
    pauses: list[float] = []

    def be_busy() -> None:
        step = next(conversation)
        while True:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                now[0] += step.seconds
                step = conversation.send(None)
            else:
                step = conversation.send(Reply(503, {"retry-after": "3"}, b""))

    with pytest.raises(Busy) as caught:
        be_busy()
    assert pauses == [3.0, 3.0, 3.0]
    assert caught.value.retry_after_s == 3


def test_a_response_that_drips_forever_times_out() -> None:
    stop = threading.Event()

    def dripping(*_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        while not stop.wait(0.02):
            yield b" "

    with (
        scripted(dripping) as server,
        _client_of(server) as remote,
        pytest.raises(Unreachable, match="incomplete"),
    ):
        remote.views()

    async def send() -> None:
        async with AsyncRemote(server.url, patience_s=0.2) as remote:
            await remote.views()

    with scripted(dripping) as server, pytest.raises(Unreachable, match="incomplete"):
        asyncio.run(send())
    stop.set()


def test_an_endless_response_is_refused_once_in_bounded_memory() -> None:
    def endless(*_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        part = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        while True:
            yield part

    with scripted(endless) as server, _client_of(server, patience_s=60) as remote:
        with pytest.raises(InvalidResponse, match="more than"):
            remote.views()
        assert len(server.requests) == 1


def test_the_outcome_is_unknown_if_a_refusal_follows_a_lost_response() -> None:
    def script(number: int, _: bytes) -> list[bytes]:
        return [answer(401, b'{"code":"HR-SERVE-LOGIN","detail":"no"}') if number else b""]

    with scripted(script) as server, _client_of(server, patience_s=5) as remote:
        with pytest.raises(OutcomeUnknown) as unknown:
            remote.topic("x").write({"a": 1})
        assert isinstance(unknown.value.__cause__, NotLoggedIn)
        # If the first attempt is refused, the client knows that nothing was written.
        with pytest.raises(NotLoggedIn):
            remote.topic("x").write({"a": 1})
        keys = {
            line
            for request in server.requests[:2]
            for line in request.split(b"\r\n")
            if b"dempotency" in line
        }
        assert keys == {f"Idempotency-Key: {unknown.value.request}".encode()}


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (answer(body=b"<html>log in to our network</html>", kind="text/html"), OutcomeUnknown),
        (answer(body=b'{"topic":"x","records":[],"token":7}'), OutcomeUnknown),
        (answer(500, b""), OutcomeUnknown),
        (answer(504, b'{"code":"HR-SERVE-OUTCOME"}'), OutcomeUnknown),
        (answer(503, b'{"code":"HR-SERVE-BUSY"}'), Busy),
        (answer(307, b"", Location="https://127.0.0.1/"), InvalidResponse),
    ],
)
def test_an_outcome_is_unknown_only_if_the_write_may_have_succeeded(
    first: bytes, kind: type[RemoteError]
) -> None:
    with scripted(lambda *_: [first]) as server, _client_of(server) as remote:
        with pytest.raises(kind) as raised:
            remote.topic("x").write({"a": 1})
        assert type(raised.value) is kind


def test_a_write_succeeds_once_the_server_recovers() -> None:
    answers = [b"", answer(502, b"bad gateway"), answer(503, b"", Retry_After="0"), answer(body=WRITTEN)]
    with scripted(lambda number, _: [answers[number]]) as server, _client_of(server, patience_s=20) as remote:
        assert remote.topic("x").write({"a": 1}).token == "t"
        assert len(server.requests) == 4


@pytest.mark.parametrize("request_id", ["", "ä", "a\r\nHost: x", "x" * 201])
def test_an_invalid_request_id_is_refused_before_it_is_sent(request_id: str) -> None:
    with Remote("http://127.0.0.1:9") as remote, pytest.raises(ConfigError, match="visible ASCII"):
        remote.topic("x").write({"a": 1}, request=request_id)


def test_invalid_and_foreign_links_are_not_followed() -> None:
    description = json.dumps(
        {
            "view": "v",
            "topic": "x",
            "key": ["k"],
            "store": "s",
            "columns": [{"name": "k", "kind": "text", "optional": False}],
        }
    ).encode()

    def script(_: int, request: bytes) -> list[bytes]:
        if b"/v/rows" in request:
            return [answer(body=PAGE)]
        if b"/records" in request:
            result = {
                "position": POSITION,
                "records": [],
                "at_end": False,
                "next": "http://elsewhere.example/v1/",
            }
            return [answer(body=json.dumps(result).encode())]
        return [answer(body=description)]

    with scripted(script) as server, _client_of(server) as remote:
        with pytest.raises(InvalidResponse, match="same page"):
            list(remote.view("v").rows())
        with pytest.raises(InvalidResponse, match="same page"):
            remote.view("v").rows().all()
        with pytest.raises(InvalidResponse, match="elsewhere"):
            list(remote.topic("x").records())
    with pytest.raises(ConfigError):
        Remote("http://127.0.0.1:99999")
    with pytest.raises(ConfigError):
        Remote("http://[::1")
    with pytest.raises(ConfigError, match="wait_s"):
        Remote(wait_s=-1)
    with Remote("http://127.0.0.1:9") as unreachable, pytest.raises(ValueDoesNotFit):
        unreachable.view("\ud800").get("x")


def test_a_closed_client_raises_and_wakes_waiting_threads() -> None:
    began = threading.Event()

    def waiting(*_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        began.set()
        threading.Event().wait(60)

    with scripted(waiting) as server:
        for close_remote in (False, True):
            remote, seen = _client_of(server), []
            changes = remote.view("v").changes()
            follower = threading.Thread(target=lambda it=changes, to=seen: to.extend(it))  # type: ignore[misc]
            follower.start()
            assert began.wait(30)
            began.clear()
            (remote if close_remote else changes).close()
            follower.join(30)
            assert not follower.is_alive()
            assert seen == []
            remote.close()
            with pytest.raises(Closed) as closed:
                remote.views()
            assert closed.value.code == "HR-REMOTE-CLOSED"
            with pytest.raises(Closed):
                next(remote.view("v").changes())


async def test_an_abandoned_subscription_leaves_nothing_open() -> None:
    def script(*_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        yield HELLO + _step(1)
        threading.Event().wait(60)

    with scripted(script) as server:
        async with AsyncRemote(server.url) as remote:
            async with remote.view("v").changes() as changes:
                async for change in changes:
                    assert change.whole
                    break
            assert changes.cursor is None
            task = asyncio.create_task(anext(remote.view("v").changes()))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with Remote(server.url) as blocking:
            changes_sync = blocking.view("v").changes()
            assert next(changes_sync).rows == [{"k": "a"}]
            connection_ref = weakref.ref(changes_sync._connection)
            del changes_sync
            # The connection must be freed at once, not at garbage collection.
            assert connection_ref() is None
        # An unclosed resource would warn, and warnings are errors.
        gc.collect()


def test_an_http_client_of_the_caller_is_used_and_left_open() -> None:
    with scripted(lambda *_: [answer(302, b"", Location="/")]) as server:
        with httpx.Client(follow_redirects=True, headers={"X-Mine": "1"}) as client:
            with (
                Remote(server.url, token=TOKEN, client=client, patience_s=0.2) as remote,
                pytest.raises(InvalidResponse, match="302"),
            ):
                remote.views()
            assert not client.is_closed
        assert b"X-Mine: 1" in server.requests[0]
        assert len(server.requests) == 1


def test_no_stack_frame_of_a_failed_constructor_has_the_token() -> None:
    for url in ("http://shop.example", "ftp://127.0.0.1", "http://127.0.0.1?x"):
        with pytest.raises(ConfigError) as refused:
            # No variable of this frame holds the token.
            Remote(url, token="".join(["hr_", "hidden"]))
        assert not _shows_the_token(refused.value)


def _shows_the_token(error: BaseException) -> bool:
    return "hr_hidden" in _traceback_text(error)


HELLO = (
    b'data: {"type":"hello","key":["k"],"resumed":false,'
    b'"columns":[{"name":"k","kind":"text","optional":false}]}\n\n'
)


def _step(at: int) -> bytes:
    result = {
        "type": "snapshot",
        "rows": [{"k": "a"}],
        "gone": [],
        "last": True,
        "position": POSITION,
        "cursor": f"c{at}",
    }
    return b"data: " + json.dumps(result).encode() + b"\n\n"


@pytest.mark.parametrize(
    "message",
    [
        b'{"type":"hello","key":["z"],"columns":[{"name":"k","kind":"text","optional":false}]}',
        b'{"type":"hello","key":["k"],"columns":[{"name":"k","kind":"colour","optional":false}]}',
        b'{"type":"hello","key":[],"columns":[{}]}',
        b'{"type":"snapshot","rows":[7],"last":true}',
        b'{"type":"changes","rows":[],"last":true}',
        b'{"type":"bye","close":"x"}',
        b"{",
        b"[]",
        b"[" * 5_000,
    ],
)
def test_an_invalid_message_is_reported(message: bytes) -> None:
    subscription = Subscription(RowQuery("v"), RowReader(None), None)
    subscription.request()
    with pytest.raises(InvalidResponse):
        for _ in subscription.parse((b"" if b"hello" in message else HELLO) + b"data: " + message + b"\n\n"):
            pass


@given(st.lists(st.sampled_from([-1e9, -1.0, 0.0, 0.001, 3.0, 1e12]), min_size=1, max_size=30))
@settings(max_examples=50)
def test_the_pause_between_retries_is_bounded_whatever_the_server_sends(pauses: list[float]) -> None:
    subscription = Subscription(RowQuery("v"), RowReader(None), None)
    waits = [subscription.pause_before_retry(Ended(entry)) for entry in pauses]
    assert all(0 < wait <= 60 for wait in waits)
    # A server that closes at once is retried after growing pauses.
    assert all(wait >= min(10, 0.1 * 2**number) / 2 for number, wait in enumerate(waits))
    assert subscription.pause_before_retry(Unreachable("x", retry_after_s=5)) >= 5


def _outcome_of(reply: Reply | Failed) -> Reply | HeadraceError:
    conversation = send_with_retries(Request("GET", "/v1/views"), RetryPolicy(_Frozen(), 0))
    next(conversation)
    try:
        conversation.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except HeadraceError as error:
        return error
    raise AssertionError("more requests than the retry limit allows")


@given(st.binary(max_size=300), st.integers(100, 599))
@settings(max_examples=60)
def test_every_response_is_a_reply_or_raises_a_headrace_error(body: bytes, status: int) -> None:
    text = body.decode("latin-1")
    reply = Reply(status, {"retry-after": text, "location": text, "date": text}, body)
    raised = _outcome_of(reply)
    if 200 <= status < 300:
        assert raised == reply
    else:
        assert isinstance(raised, HeadraceError)
        assert raised.hint
        assert str(raised)
    assert isinstance(_outcome_of(Failed(text)), Unreachable)


class _Frozen:
    def now_ms(self) -> int:
        return 0

    def steady(self) -> float:
        return 0.0
