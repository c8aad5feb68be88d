"""Checks whether a broker accepts connections. The error names the reason: refused, unknown host or no response.

librdkafka would retry until a timeout and report only the timeout. So the command first opens a connection itself,
which fails at once with the reason.
"""

from __future__ import annotations

import socket

from headrace.cli.errors import BrokerUnreachable, UsageError

__all__ = ["check_reachable", "parse_addresses", "why_unreachable"]

CONNECT_TIMEOUT_S = 3.0
_DEFAULT_PORT = 9092


def parse_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """Parse ``host:port,[::1]:9092,SASL_SSL://host:port``; the default port is 9092, as in librdkafka."""
    addresses = []
    for item in bootstrap.split(","):
        text = item.strip().partition("://")[2] or item.strip()
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
            host, port = text, str(_DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isascii() and port.isdecimal() and int(port) < 2**16):
            raise UsageError(f"{item!r} is not a broker address", hint="write HOST:PORT, e.g. 127.0.0.1:9092")
        addresses.append((host, int(port)))
    return addresses


def why_unreachable(host: str, port: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> str | None:
    """Return the reason why a connection fails; None if it succeeds."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except socket.gaierror as error:
        return f"unknown host {host!r} ({error.strerror})"
    except TimeoutError:
        return f"no response within {timeout_s:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def check_reachable(bootstrap: str, *, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    reasons = []
    for host, port in parse_addresses(bootstrap):
        reason = why_unreachable(host, port, timeout_s=timeout_s)
        if reason is None:
            return
        reasons.append(f"{host}:{port}: {reason}")
    raise BrokerUnreachable(
        f"no broker responds at {bootstrap}",
        detail="; ".join(reasons),
        hint="start an app with: headrace run MODULE:APP; or a broker with: headrace broker; or set another address "
        "with -b HOST:PORT or the setting log.listen",
    )
