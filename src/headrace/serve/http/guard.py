"""Accepts or refuses a request by its Host header and by the origin of the web page that sent it.

A page of another site can make a browser send requests to a server on the same machine. With DNS rebinding the page
can even read the responses. So the server accepts only its own host names, and only its own and the allowed origins.

Without tokens every caller on this machine is admin. A request that a proxy forwards also comes from this machine, but
its sender can be anywhere. So the server refuses forwarded requests as long as no tokens exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.broker.net.address import HostNames
from headrace.serve.errors import ForwardedRefused, HostNotAllowed, OriginRefused

if TYPE_CHECKING:
    from starlette.datastructures import Headers

__all__ = ["SAFE_HEADERS", "Guard"]

SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Vary": "Origin, Authorization",
}
"""Headers of every response. The browser must not guess the content type, show the response in a frame, or cache it."""

_ALLOWED_HEADERS = "Authorization, Content-Type, Idempotency-Key, If-None-Match"
_EXPOSED_HEADERS = (
    "ETag, Headrace-Position, Headrace-Token, Headrace-Request-Id, Idempotency-Replayed, Link, Retry-After"
)
_HOSTS_CACHED = 64
_FORWARDED = re.compile(r"forwarded|x-forwarded-.*|via|x-real-ip")


class Guard:
    """``hosts`` are names without ports, because a port can be forwarded. ``needs_token`` returns whether the server
    requires tokens.
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str], needs_token: Callable[[], bool]) -> None:
        names = HostNames(hosts)
        self._is_own_host = lru_cache(_HOSTS_CACHED)(lambda host: names.has([host]))
        self._origins = set(origins)
        self._needs_token = needs_token

    def check(self, headers: Headers) -> None:
        self._check_source(headers)
        forwarded = next((name for name in headers if _FORWARDED.fullmatch(name)), None)
        if forwarded is not None and not self._needs_token():
            raise ForwardedRefused(
                f"a proxy forwarded the request ({forwarded[:60]}), and without tokens its sender would be admin",
                hint="create a token first: headrace token create NAME --scope SCOPE",
            )

    def _check_source(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        # Refuse two Host headers: a proxy might have checked the other one.
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            raise HostNotAllowed(
                "the Host header does not name this server",
                hint="if the name is yours, add it to serve.hosts",
            )
        host, origin = hosts[0], headers.get("origin")
        if origin is not None:
            if origin not in self._origins and origin.lower() not in (
                f"http://{host}".lower(),
                f"https://{host}".lower(),
            ):
                raise _origin_refused()
        elif headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            raise _origin_refused()

    def cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that let a page of an allowed origin read the response."""
        origin = headers.get("origin", "")
        if origin not in self._origins:
            return {}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED_HEADERS}

    def preflight(self, headers: Mapping[str, str], methods: Iterable[str]) -> dict[str, str]:
        """The headers of the response to a CORS preflight."""
        if headers.get("origin", "") not in self._origins:
            raise _origin_refused()
        return {
            **self.cors_headers(headers),
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
            "Access-Control-Max-Age": "600",
        }


def _origin_refused() -> OriginRefused:
    return OriginRefused(
        "the request comes from a page of another origin",
        hint="if the origin is yours, add it to serve.origins",
    )
