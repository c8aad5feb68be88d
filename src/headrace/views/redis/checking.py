"""Whether a server of Redis can keep a view, and what is under the view's keys is ours."""

from __future__ import annotations

from headrace.views.errors import StoreUnusable
from headrace.views.redis.keys import FORMAT
from headrace.views.redis.notes import Notes
from headrace.views.redis.server import Server

__all__ = ["check", "expect_format", "expect_to_keep"]

_KEPT = ("noeviction", "volatile-")


def expect_to_keep(server: Server) -> None:
    """A server that may delete any key when memory runs short would delete a view, whole, and say nothing."""
    told = _told(server, "memory")
    policy, limit = told.get("maxmemory_policy", ""), int(told.get("maxmemory", 0))
    if limit and policy and not policy.startswith(_KEPT):
        raise StoreUnusable(
            f"{server.where} deletes keys when it has used {limit} bytes (maxmemory-policy {policy}): views too",
            hint="set maxmemory-policy to noeviction or to a volatile one (views have no expiry), or use another",
        )


def expect_format(server: Server, notes: Notes) -> None:
    if notes.format > FORMAT:
        raise StoreUnusable(
            f"{server.where} has a view of format {notes.format}, and this release reads up to {FORMAT}",
            hint="use the release that wrote it, or delete the view's keys: it is built again",
        )


def check(address: str) -> str:
    """Whether followers can work there; what it is and its version."""
    server = Server(address, "headrace:doctor")
    try:
        expect_to_keep(server)
        told = _told(server, "server")
    finally:
        server.close()
    kind = "valkey" if "valkey_version" in told else "redis"
    return f"{kind} {told.get(f'{kind}_version', 'of an unknown version')}"


def _told(server: Server, section: str) -> dict[str, str]:
    """Empty where the login may not ask."""
    try:
        lines = server.ask("INFO", section).decode().splitlines()
    except StoreUnusable:
        return {}
    return dict(line.split(":", 1) for line in lines if ":" in line)
