"""The server of views with one protection taken out; see ``bench.faults.unprotected``."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

__all__ = [
    "no_back_pressure",
    "no_escaping",
    "no_escaping_and_no_policy",
    "no_forgetting",
    "no_host_check",
    "no_origin_check",
    "no_replay_fence",
    "no_replay_marks",
    "no_resuming",
]

_TEXT_NODE = b"M.createTextNode(x)"
_AS_HTML = b'Object.assign(M.createElement("span"),{innerHTML:x})'


def no_back_pressure() -> None:
    """Whoever does not read is sent to all the same, and the process holds what it has not taken."""
    from headrace.serve.subscriptions.socket_connection import SocketConnection

    SocketConnection.pause_writing = lambda self: None  # type: ignore[method-assign]


def no_forgetting() -> None:
    """All that ever came is remembered for those who are behind."""
    from headrace.serve.subscriptions.history import History

    begin = History.__init__

    def boundless(self: History, start: Any, bytes_max: int) -> None:
        begin(self, start, bytes_max * 1_000)

    History.__init__ = boundless  # type: ignore[method-assign]


def no_resuming() -> None:
    """A cursor is taken for where the log is now."""
    from headrace.serve.subscriptions.history import History

    joint = History.joint

    def nothing(self: History, place: Any, until: Any = None) -> Any:
        return joint(self, place, until) if until is not None else ([], self.next)

    History.joint = nothing  # type: ignore[method-assign]


def no_replay_marks() -> None:
    """Nobody looks whether a letter was written back before."""
    from headrace.ops.dead.marks import Marks

    Marks.find = lambda self, key: None  # type: ignore[method-assign]


def no_replay_fence() -> None:
    """Every server writes letters back under a name of its own, and stops nobody else."""
    from headrace.client.cluster import Cluster

    make = Cluster.producer

    def unfenced(self: Cluster, extra: Any = None) -> Any:
        told = dict(extra or {})
        if "transactional.id" in told:
            told["transactional.id"] += secrets.token_hex(4)
        return make(self, told)

    Cluster.producer = unfenced  # type: ignore[method-assign]


def no_escaping() -> None:
    """Whatever the page shows as text is HTML."""
    from headrace.serve.page.page_files import PAGE_FILES, PageFile

    name = "vendor/preact.js"
    file = PAGE_FILES[name]
    assert file.body.count(_TEXT_NODE) == 1
    PAGE_FILES[name] = PageFile(file.body.replace(_TEXT_NODE, _AS_HTML), file.media_type)


def no_escaping_and_no_policy() -> None:
    """And the browser is not told to run nothing but the page's own scripts."""
    from headrace.serve.page import page_routes

    no_escaping()
    vars(page_routes)["PAGE_CSP"] = "script-src * 'unsafe-inline'"


def no_origin_check() -> None:
    """Pages of all sites may ask."""
    from headrace.serve.errors import OriginRefused
    from headrace.serve.guard import Guard

    check = Guard._check_source

    def lenient(self: Guard, headers: Any) -> None:
        with contextlib.suppress(OriginRefused):
            check(self, headers)

    Guard._check_source = lenient  # type: ignore[method-assign]


def no_host_check() -> None:
    """Any name may be pointed at the server."""
    from headrace.broker.host_names import HostNames

    HostNames.has = lambda self, hosts: True  # type: ignore[method-assign]
