"""The address of a server and the token for it. The token is sent only to that server, and never printed."""

from __future__ import annotations

import ipaddress
import urllib.parse
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    import httpx

__all__ = ["Address", "Token"]


class Token:
    """Hides the token: it is not a str, so that tracebacks and logs do not show it."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __bool__(self) -> bool:
        return self._text is not None

    def is_valid(self) -> bool:
        text = self._text
        return text is None or (text.isascii() and text.isprintable() and " " not in text and text != "")

    def header(self) -> str:
        return f"Bearer {self._text}"

    def __repr__(self) -> str:
        return "Token(...)"


class Address:
    def __init__(self, url: str, token: Token, *, plain_text: bool = False) -> None:
        # An error can print this object, so set these attributes before the first check.
        self.base, self._token = "", token
        parts = _split(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{_without_credentials(parts)!r} is not the address of a server",
                hint="use one such as http://127.0.0.1:8180",
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "the address must not have a user, query or fragment",
                hint="pass the token as token=..., not in the address",
            )
        if not token.is_valid():
            raise ConfigError(
                "the token has invalid characters", hint="check for a line break that was copied with it"
            )
        if token and parts.scheme == "http" and not plain_text and not _is_loopback(parts.hostname):
            raise ConfigError(
                f"the token would be sent to {parts.hostname} unencrypted",
                hint="use https, or set plain_text=True if the network is trusted",
            )
        self.base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def sign(self, request: httpx.Request) -> httpx.Request:
        request.headers["Authorization"] = self._token.header()
        return request

    def __repr__(self) -> str:
        return f"{self.base} ({'with' if self._token else 'without'} a token)"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(
            f"invalid server address: {error}", hint="use one such as http://127.0.0.1:8180"
        ) from None
    return parts


def _without_credentials(parts: urllib.parse.SplitResult) -> str:
    """Return the address without credentials."""
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"[:200]
