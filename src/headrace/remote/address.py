"""Where a server is, and the token for it: sent there and nowhere else, and shown to nobody."""

from __future__ import annotations

import ipaddress
import urllib.parse
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    import httpx

__all__ = ["Address", "Token"]


class Token:
    """Not a text, so that no frame of a traceback shows it where one is an argument."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __bool__(self) -> bool:
        return self._text is not None

    def is_good(self) -> bool:
        text = self._text
        return text is None or (text.isascii() and text.isprintable() and " " not in text and text != "")

    def header(self) -> str:
        return f"Bearer {self._text}"

    def __repr__(self) -> str:
        return "Token(...)"


class Address:
    def __init__(self, url: str, token: Token, *, plain_text: bool = False) -> None:
        # Whatever is raised here, this can be shown.
        self.base, self._token = "", token
        found = _split(url)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ConfigError(f"{_shown(found)!r} is no address of a server", hint="as http://127.0.0.1:8180")
        if found.username or found.password or found.query or found.fragment:
            raise ConfigError(
                "an address has no user, query or fragment",
                hint="a token is given as token=..., not in the address",
            )
        if not token.is_good():
            raise ConfigError(
                "the token has characters that no token has", hint="was a line break copied with it?"
            )
        if token and found.scheme == "http" and not plain_text and not _is_here(found.hostname):
            raise ConfigError(
                f"a token would travel to {found.hostname} as it is, for anybody on the way to read",
                hint="use https; or plain_text=True, if the way there is safe",
            )
        self.base = f"{found.scheme}://{found.netloc}{found.path.rstrip('/')}"

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def sign(self, request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = self._token.header()
        return request

    def __repr__(self) -> str:
        return f"{self.base} ({'with' if self._token else 'without'} a token)"


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(url: str) -> urllib.parse.SplitResult:
    try:
        found = urllib.parse.urlsplit(url)
        _ = found.port
    except ValueError as error:
        raise ConfigError(f"no address of a server: {error}", hint="as http://127.0.0.1:8180") from None
    return found


def _shown(found: urllib.parse.SplitResult) -> str:
    """Without what may be secret."""
    return f"{found.scheme}://{found.hostname or ''}{found.path}"[:200]
