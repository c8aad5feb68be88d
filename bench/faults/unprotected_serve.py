"""The server of views with one protection taken out; see ``bench.faults.unprotected``."""

from __future__ import annotations

import secrets
from typing import Any

__all__ = [
    "no_back_pressure",
    "no_forgetting",
    "no_replay_fence",
    "no_replay_marks",
    "no_resuming",
    "no_waiting_for_the_log",
]


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


def no_waiting_for_the_log() -> None:
    """The reader of a view's topic ends with the first error of the log."""
    from confluent_kafka import KafkaException

    from headrace.errors import HeadraceError
    from headrace.serve.subscriptions.tail import Tail

    follow = Tail._follow

    def follow_once(self: Tail) -> None:
        try:
            follow(self)
        except (HeadraceError, KafkaException, TimeoutError) as error:
            raise RuntimeError(f"the log fails: {error}") from error

    Tail._follow = follow_once  # type: ignore[method-assign]


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
