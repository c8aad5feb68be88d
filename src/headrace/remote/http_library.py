"""Configures httpx for the blocking and the asyncio client.

The client ignores redirects and the proxy settings of the environment, so that it sends the token only to the server. A
caller that passes its own httpx client decides about proxies itself. The client refuses compressed responses, because a
few bytes could decompress to fill the memory. It never raises errors of httpx, not even as a cause, because their stack
frames contain the token.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from headrace.clock import Clock
from headrace.model.errors import needing
from headrace.remote.address import Address
from headrace.remote.errors import InvalidResponse, RemoteError
from headrace.remote.exchange import Failed, FailureKind, Reply, Request, error_of_reply

if TYPE_CHECKING:
    import httpx

__all__ = [
    "CLOSED",
    "PROBLEM_BYTES_MAX",
    "Library",
    "compression_failure",
    "expect_events",
    "is_uncompressed",
    "reply_of",
    "require_error",
    "status_error",
]

_CONNECT_S = 5.0
_CONNECTIONS_MAX = 1_000
"""Each subscription uses one connection."""
_IDLE_MAX = 20
_RESPONSE_BYTES_MAX = 64 * 1024 * 1024
PROBLEM_BYTES_MAX = 64 * 1024
CLOSED = Failed("this client was closed", "closed")


class Library:
    """Imports httpx on first use."""

    def __init__(self, address: Address, clock: Clock) -> None:
        with needing("remote", "httpx"):
            import httpx
        self.httpx = httpx
        self.address = address
        self.clock = clock
        self.closed = False

    def client_options(self) -> dict[str, Any]:
        limits = self.httpx.Limits(max_connections=_CONNECTIONS_MAX, max_keepalive_connections=_IDLE_MAX)
        # Load certificates only for https, because loading is slow.
        return {"trust_env": False, "limits": limits, "verify": self.address.base.startswith("https:")}

    def request_options(self, request: Request) -> dict[str, Any]:
        return {
            "method": request.method,
            "url": self.address.base + request.path,
            "content": request.body,
            "headers": {"Accept-Encoding": "identity", **request.headers},
            "timeout": self.httpx.Timeout(request.timeout_s, connect=min(_CONNECT_S, request.timeout_s)),
        }

    def send_options(self) -> dict[str, Any]:
        # httpx adds the token to the headers, and never prints them.
        login = {"auth": self.address.sign} if self.address.has_token else {}
        return {"stream": True, "follow_redirects": False, **login}

    def failure_of(self, error: Exception) -> Failed:
        return Failed(_reason(error), self._failure_kind(error))

    def _failure_kind(self, error: Exception) -> FailureKind:
        httpx = self.httpx
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
            return "distrusted" if _is_certificate_error(error) else "unsent"
        return (
            "unusable"
            if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError))
            else "broken"
        )

    def limit_failure(self, size: int, started_s: float, timeout_s: float) -> Failed | None:
        if size > _RESPONSE_BYTES_MAX:
            return Failed(f"the response has more than {_RESPONSE_BYTES_MAX} bytes", "unusable")
        if self.clock.steady() - started_s > timeout_s:
            return Failed(f"the response was incomplete after {timeout_s:.0f} s")
        return None


def reply_of(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, {name.lower(): text for name, text in response.headers.items()}, body)


def is_uncompressed(response: httpx.Response) -> bool:
    return response.headers.get("content-encoding", "identity").strip().lower() in ("", "identity")


def compression_failure(response: httpx.Response) -> Failed:
    how = response.headers["content-encoding"][:40]
    return Failed(f"the response is compressed ({how!a}), but the client did not accept that", "unusable")


def expect_events(response: httpx.Response) -> None:
    kind = response.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "text/event-stream":
        raise InvalidResponse(
            f"the response is not an event stream but {kind[:100]!a}",
            hint="check the address, and any proxy in between",
            status=response.status_code,
        )


def status_error(request: Request, reply: Reply) -> RemoteError:
    """Return the error for a response to a stream request whose status is not 200."""
    return error_of_reply(request, reply) or InvalidResponse(
        f"the response has status {reply.status} and is not an event stream", status=reply.status
    )


def require_error(error: RemoteError | None) -> RemoteError:
    assert error is not None
    return error


def _is_certificate_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
