"""httpx, as both kinds of callers use it.

Redirects are not followed, so that a token goes nowhere else; nor is what the environment says of proxies, unless the
caller brings a client of its own that does. Answers come as they are sent: what is compressed is refused, since a few
bytes of it could fill the memory. No error of httpx is passed on, not even as a cause: its frames hold the token.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from headrace.clock import Clock
from headrace.model.extras import needing
from headrace.remote.address import Address
from headrace.remote.errors import AnswerUnfit, RemoteError
from headrace.remote.exchange import Failed, FailedHow, Reply, Request, trouble

if TYPE_CHECKING:
    import httpx

__all__ = [
    "CLOSED",
    "PROBLEM_BYTES_MAX",
    "Library",
    "compressed",
    "expect_events",
    "is_plain",
    "known",
    "not_events",
    "reply_of",
]

_CONNECT_S = 5.0
_CONNECTIONS_MAX = 1_000
"""Each subscription holds one."""
_IDLE_MAX = 20
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
PROBLEM_BYTES_MAX = 64 * 1024
CLOSED = Failed("this client was closed", "closed")


class Library:
    """httpx, loaded when somebody needs it, and how it is asked."""

    def __init__(self, address: Address, clock: Clock) -> None:
        with needing("remote", "httpx"):
            import httpx
        self.httpx = httpx
        self.address = address
        self.clock = clock
        self.closed = False

    def own(self) -> dict[str, Any]:
        limits = self.httpx.Limits(max_connections=_CONNECTIONS_MAX, max_keepalive_connections=_IDLE_MAX)
        # Certificates take longer to load than an answer takes to come, and http needs none.
        return {"trust_env": False, "limits": limits, "verify": self.address.base.startswith("https:")}

    def request(self, request: Request) -> dict[str, Any]:
        return {
            "method": request.method,
            "url": self.address.base + request.path,
            "content": request.body,
            "headers": {"Accept-Encoding": "identity", **request.headers},
            "timeout": self.httpx.Timeout(request.within_s, connect=min(_CONNECT_S, request.within_s)),
        }

    def sending(self) -> dict[str, Any]:
        # The token joins the headers inside httpx, which does not show them.
        login = {"auth": self.address.sign} if self.address.has_token else {}
        return {"stream": True, "follow_redirects": False, **login}

    def failed(self, error: Exception) -> Failed:
        return Failed(_reason(error), self._how(error))

    def _how(self, error: Exception) -> FailedHow:
        httpx = self.httpx
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
            return "distrusted" if _is_of_certificates(error) else "unsent"
        return (
            "unfit" if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)) else "broken"
        )

    def too_much(self, size: int, began: float, within_s: float) -> Failed | None:
        if size > _ANSWER_BYTES_MAX:
            return Failed(f"it has more than {_ANSWER_BYTES_MAX} bytes", "unfit")
        if self.clock.steady() - began > within_s:
            return Failed(f"it is not whole after {within_s:.0f} s")
        return None


def reply_of(answer: httpx.Response, body: bytes) -> Reply:
    return Reply(answer.status_code, {name.lower(): text for name, text in answer.headers.items()}, body)


def is_plain(answer: httpx.Response) -> bool:
    return answer.headers.get("content-encoding", "identity").strip().lower() in ("", "identity")


def compressed(answer: httpx.Response) -> Failed:
    how = answer.headers["content-encoding"][:40]
    return Failed(f"it is compressed ({how!a}), which was not asked for", "unfit")


def expect_events(answer: httpx.Response) -> None:
    kind = answer.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "text/event-stream":
        raise AnswerUnfit(
            f"the answer is no stream of events but {kind[:100]!a}",
            hint="is there something else at this address, or in front of the server?",
            status=answer.status_code,
        )


def not_events(request: Request, reply: Reply) -> RemoteError:
    """Of an answer that is not 200."""
    return trouble(request, reply) or AnswerUnfit(
        f"the answer has the status {reply.status}, and is no stream of events", status=reply.status
    )


def known(error: RemoteError | None) -> RemoteError:
    assert error is not None
    return error


def _is_of_certificates(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
