"""Is anyone there? Asked of the operating system first, which knows at once and says why not.

The Kafka client would try again and again until a time-out and then report only that. A refused connection,
an unknown name and a silent host need three different next steps, so they are told apart here.
"""

from __future__ import annotations

import socket

from headrace.cli.errors import BrokerUnreachable, UsageError

__all__ = ["check_reachable", "parse_addresses", "why_unreachable"]

CONNECT_TIMEOUT_S = 3.0
_DEFAULT_PORT = 9092


def parse_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """``host:port,[::1]:9092,SASL_SSL://host:port`` as pairs; as with librdkafka, 9092 may be left out."""
    addresses = []
    for item in bootstrap.split(","):
        text = item.strip().partition("://")[2] or item.strip()
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
            host, port = text, str(_DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isascii() and port.isdecimal() and int(port) < 2**16):
            raise UsageError(
                f"{item!r} is not an address of a broker", hint="write HOST:PORT, e.g. 127.0.0.1:9092"
            )
        addresses.append((host, int(port)))
    return addresses


def why_unreachable(host: str, port: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> str | None:
    """None if a connection can be made."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except socket.gaierror as error:
        return f"the name {host!r} is not known ({error.strerror})"
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
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
        f"no broker answers at {bootstrap}",
        detail="; ".join(reasons),
        hint="start one with: headrace broker --data ./headrace-data; or name another with -b HOST:PORT",
    )
