"""The client's requests, without sockets. An exchange is a generator, so blocking and asyncio clients share its code.

An exchange yields a ``Request`` and receives the ``Reply``, or ``Failed`` if no reply arrived. It can also yield a
``Pause``, and continues after it. ``transport.py`` sends the requests.
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
from headrace.remote.errors import (
    Busy,
    Closed,
    InvalidResponse,
    RemoteError,
    ServerFault,
    Unreachable,
    error_of,
)

__all__ = [
    "Failed",
    "FailureKind",
    "Pause",
    "Reply",
    "Request",
    "RetryPolicy",
    "Step",
    "Steps",
    "error_of_reply",
    "json_of",
    "limit_to_time_left",
    "problem_body",
    "send_with_retries",
]

_PAUSE_S_FIRST = 0.05
_PAUSE_S_MAX = 2.0
_CHECK_ADDRESS = "check that the address is that of a Headrace server of this release"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """The path with the query."""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    """Time limit for the response, in seconds."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """Headers by name. The names are in lower case."""
    body: bytes


FailureKind = Literal["broken", "unsent", "distrusted", "unusable", "closed"]
"""broken: the request may have arrived. unsent: the request did not arrive. distrusted: the client did not send the
request, because the server's certificate is not trusted. unusable: the response is invalid. closed: this client was
closed.
"""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request got no usable response."""

    reason: str
    how: FailureKind = "broken"


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Step = Request | Pause
Steps = Generator[Step, Any, Any]


class RetryPolicy:
    """Limits how long to retry. Pauses grow, and have a random part."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._deadline_s = clock.steady() + seconds
        self._pause_s = _PAUSE_S_FIRST

    @property
    def left_s(self) -> float:
        return max(0.0, self._deadline_s - self._clock.steady())

    def pause(self, server_s: float = 0.0) -> Pause | None:
        """Return the next pause, or None if no time is left for another attempt. ``server_s`` is the server's
        Retry-After.
        """
        wait_s = max(self._pause_s * random.uniform(0.5, 1.0), server_s)  # noqa: S311
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
        return Pause(wait_s) if wait_s < self.left_s else None


def send_with_retries(request: Request, retry_policy: RetryPolicy) -> Steps:
    """Return the successful reply. Retry temporary errors; use this only for requests that are safe to repeat."""
    while True:
        reply = yield limit_to_time_left(request, retry_policy)
        error = error_of_reply(request, reply)
        if error is None:
            return reply
        is_temporary = isinstance(error, (Unreachable, Busy, ServerFault))
        pause = retry_policy.pause(error.retry_after_s) if is_temporary else None
        if pause is None:
            raise error
        yield pause


def limit_to_time_left(request: Request, retry_policy: RetryPolicy) -> Request:
    """Reduce the request's timeout to the time left, but never below one second."""
    return replace(request, timeout_s=min(request.timeout_s, max(retry_policy.left_s, 1.0)))


def error_of_reply(request: Request, reply: Reply | Failed) -> RemoteError | None:
    """Convert a reply to an error by its status. Return None for a successful reply."""
    line = f"{request.method} {request.path.partition('?')[0]}"
    if isinstance(reply, Failed):
        return _failure(line, reply)
    if 200 <= reply.status < 300:
        return None
    if reply.status < 400:
        return InvalidResponse(
            f"{line} was redirected ({reply.status}) to {_redirect_target(reply.headers.get('location', ''))}",
            hint="use the address of the server itself, because tokens are never sent to a redirect",
            status=reply.status,
        )
    request_id = reply.headers.get("headrace-request-id", "")
    return error_of(reply.status, problem_body(reply.body), request_id, _retry_after_s(reply.headers))


def _failure(line: str, failed: Failed) -> RemoteError:
    match failed.how:
        case "unusable":
            return InvalidResponse(
                f"the response to {line} is unusable: {failed.reason}", hint=_CHECK_ADDRESS
            )
        case "closed":
            return Closed(f"{line} was not sent: {failed.reason}", hint="create another client")
        case "distrusted":
            return InvalidResponse(
                f"{line} was not sent: the server's certificate is not trusted: {failed.reason}",
                hint="pass a client that trusts the certificate: client=httpx.Client(verify=...)",
            )
    return Unreachable(
        f"no response to {line}: {failed.reason}", hint="check that the server runs at this address"
    )


def json_of(reply: Reply, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidResponse(
            f"the response is not from a Headrace server: {error}",
            hint=_CHECK_ADDRESS,
            status=reply.status,
        ) from None


def problem_body(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Parse Retry-After: seconds, or an HTTP date that is compared with the server's Date header."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        until, now = (parsedate_to_datetime(value) for value in (text, headers.get("date", "")))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0


def _redirect_target(location: str) -> str:
    """Return the target without credentials."""
    try:
        parts = urllib.parse.urlsplit(location)
        target = parts._replace(netloc=parts.hostname or "", query="", fragment="").geturl()
    except ValueError:
        target = ""
    return repr(target[:200]) if target else "nowhere"
