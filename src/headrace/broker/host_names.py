"""The names that a server answers to in a request's Host header.

A page of another site can make a browser ask a server by a name whose address it changes (DNS rebinding), and read the
answers. It then names its own host, so only names that the server is known by are answered.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

__all__ = ["HostNames", "split_names"]

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9._-]+)(?::[0-9]{1,5})?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HostNames:
    """``names`` are without ports: a port may be forwarded. ``any_address`` also takes every Host that is an address:
    no page can have one changed.
    """

    def __init__(self, names: Iterable[str], *, any_address: bool = False) -> None:
        self._names = {_bracketed(name.lower()) for name in (*names, *_LOOPBACK)}
        self._any_address = any_address

    def has(self, hosts: Sequence[str]) -> bool:
        """Of the values of all Host headers: of two, whoever stands in front may have believed the other."""
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return False
        name = found[1].lower()
        return name in self._names or (self._any_address and _is_address(name))


def split_names(text: str) -> list[str]:
    """Of a setting that has several, with commas in between."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _bracketed(host: str) -> str:
    """As a Host has it."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
