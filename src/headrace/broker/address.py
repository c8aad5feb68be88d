"""An address to listen on."""

from __future__ import annotations

import ipaddress

from headrace.errors import ConfigError

__all__ = ["is_loopback", "parse_address"]


def parse_address(text: str, what: str) -> tuple[str, int]:
    """``HOST:PORT``, with an IPv6 host in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ConfigError(
            f"{what} {text!r} is not HOST:PORT",
            hint="for example 127.0.0.1:9092, or [::1]:9092; port 0 takes a free one",
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
