"""Servers that are none, or broken, or mean harm: every call ends, in time, with an error that says why."""

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
    AnswerUnfit,
    AsyncRemote,
    Busy,
    Closed,
    NotLoggedIn,
    OutcomeUnknown,
    Remote,
    RemoteError,
    ServerFault,
    Unreachable,
)
from headrace.remote.exchange import Failed, Patience, Pause, Reply, Request, asked
from headrace.remote.reading import Question
from headrace.remote.reading_as import Read
from headrace.remote.subscription import Ended, Subscription
from tests.remote.scripted import Scripted, answer, scripted

TOKEN = "hr_" + "s3cret" * 7
POSITION = {"token": "t", "topic": "x", "offsets": {"0": 1}}
WRITTEN = json.dumps({"topic": "x", "records": [{"partition": 0, "offset": 0}], "token": "t"}).encode()
PAGE = json.dumps({"position": POSITION, "rows": [], "next": "/v1/views/v/rows?again"}).encode()


def _asking(server: Scripted, **options: Any) -> Remote:
    return Remote(server.url, token=TOKEN, **{"patience_s": 0.2, "wait_s": 0.2, **options})


def _said(error: BaseException) -> str:
    """All that anybody could see of it, the values in its frames and in those of its causes as well."""
    seen, text, left = set(), "", [error]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            text += "".join(traceback.TracebackException.from_exception(one, capture_locals=True).format())
            left += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return text


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (answer(body=b"<html>"), AnswerUnfit),
        (answer(body=b'{"views": 7}'), AnswerUnfit),
        (answer(body=b'{"app":"a","views":[{"view":1}]}'), AnswerUnfit),
        (answer(body=b"[" * 100_000), AnswerUnfit),
        (answer(body=b"\xff\xfe"), AnswerUnfit),
        (answer(204, b""), AnswerUnfit),
        (answer(302, b"", Location="http://elsewhere.example/?secret=x"), AnswerUnfit),
        (answer(304, b""), AnswerUnfit),
        (answer(body=gzip.compress(b"{}"), Content_Encoding="gzip"), AnswerUnfit),
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
def test_an_answer_that_is_none_is_an_error_with_the_next_step_and_without_the_token(
    script: bytes, kind: type[RemoteError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with scripted(lambda *_: [script]) as server, _asking(server) as remote:
        with pytest.raises(kind) as found:
            remote.views()
        assert type(found.value) is kind
        assert found.value.hint
        assert found.value.code.startswith("HR-REMOTE")
        assert TOKEN not in _said(found.value) + caplog.text
        assert "secret=x" not in str(found.value)
        assert all(TOKEN.encode() in one for one in server.requests)
        with pytest.raises(RemoteError) as broken:
            next(remote.view("v").changes(cursor="c")) if kind in (
                AnswerUnfit,
                NotLoggedIn,
            ) else remote.views()
        assert TOKEN not in _said(broken.value)


def test_a_server_that_asks_for_time_gets_it_if_there_is_so_much_patience() -> None:
    now = [0.0]

    class Standing:
        def now_ms(self) -> int:
            raise AssertionError("the wall clock may jump, and is not asked")

        def steady(self) -> float:
            return now[0]

    conversation = asked(Request("GET", "/v1/views"), Patience(Standing(), 10))
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

    with pytest.raises(Busy) as given_up:
        be_busy()
    assert pauses == [3.0, 3.0, 3.0]
    assert given_up.value.retry_after_s == 3


def test_the_answer_that_drips_for_ever_is_given_up() -> None:
    over = threading.Event()

    def dripping(*_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        while not over.wait(0.02):
            yield b" "

    with (
        scripted(dripping) as server,
        _asking(server) as remote,
        pytest.raises(Unreachable, match="not whole"),
    ):
        remote.views()

    async def ask() -> None:
        async with AsyncRemote(server.url, patience_s=0.2) as remote:
            await remote.views()

    with scripted(dripping) as server, pytest.raises(Unreachable, match="not whole"):
        asyncio.run(ask())
    over.set()


def test_an_answer_without_end_is_refused_once_and_does_not_fill_the_memory() -> None:
    def endless(*_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        part = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        while True:
            yield part

    with scripted(endless) as server, _asking(server, patience_s=60) as remote:
        with pytest.raises(AnswerUnfit, match="more than"):
            remote.views()
        assert len(server.requests) == 1


def test_what_refuses_a_write_after_an_answer_was_lost_does_not_say_that_nothing_was_written() -> None:
    def script(number: int, _: bytes) -> list[bytes]:
        return [answer(401, b'{"code":"HR-SERVE-LOGIN","detail":"no"}') if number else b""]

    with scripted(script) as server, _asking(server, patience_s=5) as remote:
        with pytest.raises(OutcomeUnknown) as unknown:
            remote.topic("x").write({"a": 1})
        assert isinstance(unknown.value.__cause__, NotLoggedIn)
        # A refusal of the first try is one.
        with pytest.raises(NotLoggedIn):
            remote.topic("x").write({"a": 1})
        keys = {line for one in server.requests[:2] for line in one.split(b"\r\n") if b"dempotency" in line}
        assert keys == {f"Idempotency-Key: {unknown.value.request}".encode()}


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (answer(body=b"<html>log in to our network</html>", kind="text/html"), OutcomeUnknown),
        (answer(body=b'{"topic":"x","records":[],"token":7}'), OutcomeUnknown),
        (answer(500, b""), OutcomeUnknown),
        (answer(504, b'{"code":"HR-SERVE-OUTCOME"}'), OutcomeUnknown),
        (answer(503, b'{"code":"HR-SERVE-BUSY"}'), Busy),
        (answer(307, b"", Location="https://127.0.0.1/"), AnswerUnfit),
    ],
)
def test_a_write_is_unknown_only_where_it_may_have_been_carried_out(
    first: bytes, kind: type[RemoteError]
) -> None:
    with scripted(lambda *_: [first]) as server, _asking(server) as remote:
        with pytest.raises(kind) as found:
            remote.topic("x").write({"a": 1})
        assert type(found.value) is kind


def test_a_write_goes_on_when_the_server_is_itself_again() -> None:
    answers = [b"", answer(502, b"bad gateway"), answer(503, b"", Retry_After="0"), answer(body=WRITTEN)]
    with scripted(lambda number, _: [answers[number]]) as server, _asking(server, patience_s=20) as remote:
        assert remote.topic("x").write({"a": 1}).token == "t"
        assert len(server.requests) == 4


@pytest.mark.parametrize("request_id", ["", "ä", "a\r\nHost: x", "x" * 201])
def test_a_request_id_that_no_header_can_have_is_refused_before_it_is_sent(request_id: str) -> None:
    with Remote("http://127.0.0.1:9") as remote, pytest.raises(ConfigError, match="visible ASCII"):
        remote.topic("x").write({"a": 1}, request=request_id)


def test_links_that_lead_nowhere_or_elsewhere_are_not_followed() -> None:
    described = json.dumps(
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
            told = {
                "position": POSITION,
                "records": [],
                "at_end": False,
                "next": "http://elsewhere.example/v1/",
            }
            return [answer(body=json.dumps(told).encode())]
        return [answer(body=described)]

    with scripted(script) as server, _asking(server) as remote:
        with pytest.raises(AnswerUnfit, match="same page"):
            list(remote.view("v").rows())
        with pytest.raises(AnswerUnfit, match="same page"):
            remote.view("v").rows().all()
        with pytest.raises(AnswerUnfit, match="elsewhere"):
            list(remote.topic("x").records())
    with pytest.raises(ConfigError):
        Remote("http://127.0.0.1:99999")
    with pytest.raises(ConfigError):
        Remote("http://[::1")
    with pytest.raises(ConfigError, match="wait_s"):
        Remote(wait_s=-1)
    with Remote("http://127.0.0.1:9") as nobody, pytest.raises(ValueDoesNotFit):
        nobody.view("\ud800").get("x")


def test_a_closed_client_says_so_and_wakes_who_waits() -> None:
    began = threading.Event()

    def waiting(*_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        began.set()
        threading.Event().wait(60)

    with scripted(waiting) as server:
        for close_remote in (False, True):
            remote, seen = _asking(server), []
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


async def test_a_subscription_that_is_left_in_the_middle_leaves_nothing_open() -> None:
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
            line = weakref.ref(changes_sync._line)
            del changes_sync
            # At once, and not when memory is tidied up.
            assert line() is None
        # What was forgotten would warn, and a warning is an error here.
        gc.collect()


def test_a_client_of_the_callers_own_is_used_and_left_open() -> None:
    with scripted(lambda *_: [answer(302, b"", Location="/")]) as server:
        with httpx.Client(follow_redirects=True, headers={"X-Mine": "1"}) as client:
            with (
                Remote(server.url, token=TOKEN, client=client, patience_s=0.2) as remote,
                pytest.raises(AnswerUnfit, match="302"),
            ):
                remote.views()
            assert not client.is_closed
        assert b"X-Mine: 1" in server.requests[0]
        assert len(server.requests) == 1


def test_a_token_is_in_no_frame_of_what_is_raised_while_a_client_is_made() -> None:
    for url in ("http://shop.example", "ftp://127.0.0.1", "http://127.0.0.1?x"):
        with pytest.raises(ConfigError) as refused:
            # This frame has no name for it, and its asserts none either.
            Remote(url, token="".join(["hr_", "hidden"]))
        assert not _tells_the_token(refused.value)


def _tells_the_token(error: BaseException) -> bool:
    return "hr_hidden" in _said(error)


HELLO = (
    b'data: {"type":"hello","key":["k"],"resumed":false,'
    b'"columns":[{"name":"k","kind":"text","optional":false}]}\n\n'
)


def _step(at: int) -> bytes:
    told = {
        "type": "snapshot",
        "rows": [{"k": "a"}],
        "gone": [],
        "last": True,
        "position": POSITION,
        "cursor": f"c{at}",
    }
    return b"data: " + json.dumps(told).encode() + b"\n\n"


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
def test_a_message_that_is_none_is_said_to_be_so(message: bytes) -> None:
    subscription = Subscription(Question("v"), Read(None), None)
    subscription.request()
    with pytest.raises(AnswerUnfit):
        for _ in subscription.take((b"" if b"hello" in message else HELLO) + b"data: " + message + b"\n\n"):
            pass


@given(st.lists(st.sampled_from([-1e9, -1.0, 0.0, 0.001, 3.0, 1e12]), min_size=1, max_size=30))
@settings(max_examples=50)
def test_whatever_a_server_says_it_is_asked_again_in_a_while_that_is_bounded(told: list[float]) -> None:
    subscription = Subscription(Question("v"), Read(None), None)
    waits = [subscription.broken(Ended(one)) for one in told]
    assert all(0 < wait <= 60 for wait in waits)
    # Who sends everybody away at once is not asked without a pause, and less and less often.
    assert all(wait >= min(10, 0.1 * 2**number) / 2 for number, wait in enumerate(waits))
    assert subscription.broken(Unreachable("x", retry_after_s=5)) >= 5


def _told(reply: Reply | Failed) -> Reply | HeadraceError:
    conversation = asked(Request("GET", "/v1/views"), Patience(_Frozen(), 0))
    next(conversation)
    try:
        conversation.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except HeadraceError as error:
        return error
    raise AssertionError("there is no patience for more")


@given(st.binary(max_size=300), st.integers(100, 599))
@settings(max_examples=60)
def test_no_answer_whatever_raises_anything_but_an_error_of_ours(body: bytes, status: int) -> None:
    text = body.decode("latin-1")
    reply = Reply(status, {"retry-after": text, "location": text, "date": text}, body)
    found = _told(reply)
    if 200 <= status < 300:
        assert found == reply
    else:
        assert isinstance(found, HeadraceError)
        assert found.hint
        assert str(found)
    assert isinstance(_told(Failed(text)), Unreachable)


class _Frozen:
    def now_ms(self) -> int:
        return 0

    def steady(self) -> float:
        return 0.0
