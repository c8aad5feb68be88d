"""Which requests are ours at all: the Host that they name, and the page that they come from.

A page of another site can make a browser ask a server on the same machine, and by a name whose address it changes (DNS
rebinding) even read the answers. So only names that the server is known by are answered, and only pages of its own
origin, or of those that are allowed.

Without tokens everybody on this machine may do everything. A request that a proxy forwards comes from this machine as
well, but its sender need not be here: such requests are refused as long as there are no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.broker.host_names import HostNames
from headrace.serve.errors import ForwardedRefused, HostUnknown, OriginRefused

if TYPE_CHECKING:
    from starlette.datastructures import Headers

__all__ = ["Guard"]

_ALLOWED = "Authorization, Content-Type, Idempotency-Key, If-None-Match"
_EXPOSED = (
    "ETag, Headrace-Position, Headrace-Token, Headrace-Request-Id, Idempotency-Replayed, Link, Retry-After"
)
_FORWARDED = re.compile(r"forwarded|x-forwarded-.*|via|x-real-ip")


class Guard:
    """``hosts`` are names without ports: a port may be forwarded. ``needs_token`` says whether anybody needs one."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str], needs_token: Callable[[], bool]) -> None:
        self._hosts = HostNames(hosts)
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
        if not self._hosts.has(hosts):
            raise HostUnknown(
                "the request names a host that this server is not known by",
                hint="name it in serve.hosts, if it is yours",
            )
        host, origin = hosts[0], headers.get("origin")
        if origin is not None:
            if origin not in self._origins and origin.lower() not in (
                f"http://{host}".lower(),
                f"https://{host}".lower(),
            ):
                raise _refused()
        elif headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            raise _refused()

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What a browser needs to give an answer to a page of an allowed origin."""
        origin = headers.get("origin", "")
        if origin not in self._origins:
            return {}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED}

    def preflight(self, headers: Mapping[str, str], methods: Iterable[str]) -> dict[str, str]:
        """The answer to a browser that asks whether it may ask."""
        if headers.get("origin", "") not in self._origins:
            raise _refused()
        return {
            **self.answer_headers(headers),
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": _ALLOWED,
            "Access-Control-Max-Age": "600",
        }


def _refused() -> OriginRefused:
    return OriginRefused(
        "the request comes from a page of another origin", hint="name it in serve.origins, if it is yours"
    )
