"""Parses addresses to listen on, and checks the Host header of HTTP requests.

In a DNS rebinding attack, a malicious site changes the address of its own host name to the address of this server. A
page of the site can then, in a browser, send requests to this server and read the responses. The Host header of such a
request has the site's name, so the server accepts only its own names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from headrace.errors import ConfigError

__all__ = ["HostNames", "is_loopback", "parse_address", "split_names"]


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, with an IPv6 host in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ConfigError(
            f"{option} {text!r} is not HOST:PORT",
            hint="use for example 127.0.0.1:9092 or [::1]:9092; with port 0, the system chooses a free port",
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9._-]+)(?::[0-9]{1,5})?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HostNames:
    """The host names that a server accepts.

    ``names`` have no ports, because a port can be forwarded. With ``any_address``, every IP address is accepted too,
    because DNS rebinding needs a name.
    """

    def __init__(self, names: Iterable[str], *, any_address: bool = False) -> None:
        self._names = {_bracketed(name.lower()) for name in (*names, *_LOOPBACK)}
        self._any_address = any_address

    def has(self, hosts: Sequence[str]) -> bool:
        """Return whether the Host header is accepted. ``hosts`` has the values of all Host headers.

        Several Host headers are refused, because a proxy may have checked another one.
        """
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            return False
        name = match[1].lower()
        return name in self._names or (self._any_address and _is_address(name))


def split_names(text: str) -> list[str]:
    """Return the names in a comma-separated setting."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _bracketed(host: str) -> str:
    """Put an IPv6 address in brackets, as in a Host header."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
