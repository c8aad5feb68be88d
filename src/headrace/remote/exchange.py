"""Requests and answers as data, and what to do about them as steps: nothing here opens a socket or waits.

A conversation is a generator. It yields a ``Request`` and is sent the ``Reply``, or ``Failed`` if none came; or it
yields a ``Pause`` and goes on when that is over. So one text of each conversation serves callers that block and callers
that do not.
"""

from __future__ import annotations

import random
import urllib.parse
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import msgspec

from headrace.clock import Clock
from headrace.remote.errors import AnswerUnfit, Busy, Closed, RemoteError, ServerFault, Unreachable, error_of

__all__ = [
    "Failed",
    "FailedHow",
    "Patience",
    "Pause",
    "Reply",
    "Request",
    "Step",
    "Steps",
    "asked",
    "hurried",
    "json_of",
    "problem_body",
    "trouble",
]

_PAUSE_S_FIRST = 0.05
_PAUSE_S_MAX = 2.0
_STRANGER = "is there something else at this address, or a release that differs?"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """With its query."""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    within_s: float = 30.0
    """How long an answer may take."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: bytes


FailedHow = Literal["broken", "unsent", "distrusted", "unfit", "closed"]
"""broken: the request may have arrived; unsent: it has not. distrusted: nor will it, for want of a certificate that is
known. unfit: an answer came, and is nothing to be had. closed: this client was.
"""


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer came."""

    reason: str
    how: FailedHow = "broken"


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Step = Request | Pause
Steps = Generator[Step, Any, Any]


class Patience:
    """How long to go on trying, and how long to wait in between: longer each time, and never all at once."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._until = clock.steady() + seconds
        self._pause_s = _PAUSE_S_FIRST

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - self._clock.steady())

    def pause(self, told_s: float = 0.0) -> Pause | None:
        """None when there is no time for another try. ``told_s`` is what the server asked for."""
        wait_s = max(self._pause_s * random.uniform(0.5, 1.0), told_s)  # noqa: S311
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        return Pause(wait_s) if wait_s < self.left_s else None


def asked(request: Request, patience: Patience) -> Steps:
    """The answer, a good one; what may heal is tried again for as long as there is patience. Only for what may be sent
    twice.
    """
    while True:
        reply = yield hurried(request, patience)
        error = trouble(request, reply)
        if error is None:
            return reply
        heals = isinstance(error, (Unreachable, Busy, ServerFault))
        pause = patience.pause(error.retry_after_s) if heals else None
        if pause is None:
            raise error
        yield pause


def hurried(request: Request, patience: Patience) -> Request:
    """Within what patience is left, though never without a chance."""
    return replace(request, within_s=min(request.within_s, max(patience.left_s, 1.0)))


def trouble(request: Request, reply: Reply | Failed) -> RemoteError | None:
    """What is wrong with an answer, by its status; None if nothing is."""
    line = f"{request.method} {request.path.partition('?')[0]}"
    if isinstance(reply, Failed):
        return _failure(line, reply)
    if 200 <= reply.status < 300:
        return None
    if reply.status < 400:
        return AnswerUnfit(
            f"{line} was answered with {reply.status}, which leads to {_place(reply.headers.get('location', ''))}",
            hint="give the address of the server itself: no token goes where an answer leads",
            status=reply.status,
        )
    request_id = reply.headers.get("headrace-request-id", "")
    return error_of(reply.status, problem_body(reply.body), request_id, _retry_after_s(reply.headers))


def _failure(line: str, failed: Failed) -> RemoteError:
    match failed.how:
        case "unfit":
            return AnswerUnfit(f"the answer to {line} cannot be taken: {failed.reason}", hint=_STRANGER)
        case "closed":
            return Closed(f"{line} was not sent: {failed.reason}", hint="make another one")
        case "distrusted":
            return AnswerUnfit(
                f"{line} was not sent, since the server is not known: {failed.reason}",
                hint="give a client that knows its certificate: client=httpx.Client(verify=...)",
            )
    return Unreachable(
        f"no answer to {line}: {failed.reason}", hint="is the server running, and is this its address?"
    )


def json_of(reply: Reply, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerUnfit(
            f"the answer is none of a Headrace server: {error}",
            hint=_STRANGER,
            status=reply.status,
        ) from None


def problem_body(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """In seconds, or until a time: by the clock of who said it, not by ours."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        until, now = (parsedate_to_datetime(one) for one in (text, headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0


def _place(location: str) -> str:
    """Without what may be secret."""
    try:
        found = urllib.parse.urlsplit(location)
        shown = found._replace(netloc=found.hostname or "", query="", fragment="").geturl()
    except ValueError:
        shown = ""
    return repr(shown[:200]) if shown else "nowhere"
