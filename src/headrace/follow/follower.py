"""A follower keeps one view up to date: it opens the store, follows the log, and retries after temporary errors.

If the broker is unreachable, or the store is locked or full, the follower reports that once and retries with increasing
delays. Permanent errors end ``run``, for example a store that another program created, or a newer follower of the view.

A store that the follower has already used was its own and intact. If such a store becomes unusable, the follower waits.
If it appears damaged or foreign, an operator may be working on it, so the follower retries for ten seconds.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError
from headrace.follow.context import FollowContext, FollowStatus
from headrace.follow.dead_letters import DeadLetters
from headrace.follow.session import FollowSession
from headrace.model.declarations import Flow, View
from headrace.stores.errors import StoreDamaged, StoreForeign, StoreUnusable
from headrace.stores.writer import Owner, StoreWriter

__all__ = ["Follower"]

# Short, so that an unresponsive log is reported soon, and a stop is not delayed.
_TIMEOUT_S = 5.0
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_DAMAGED_S = 10.0


class Follower:
    """``run`` calls ``open_writer`` in its thread, and calls it again after a failure. ``print_line`` receives
    messages for the user. ``max_rows`` is the maximum number of rows per store transaction. A batch of a flow is never
    split.
    """

    def __init__(
        self,
        view: View,
        flows: Sequence[Flow],
        cluster: Cluster,
        open_writer: Callable[[], StoreWriter],
        *,
        clock: Clock | None = None,
        print_line: Callable[[str], None] = lambda line: None,
        max_rows: int = 10_000,
    ) -> None:
        self._max_rows = max_rows
        self.view = view
        self._flows = flows
        self._cluster = cluster
        self._open_writer = open_writer
        self._clock = clock or SystemClock()
        self._print = print_line
        self._status = FollowStatus(view.name)
        self._is_waiting = False
        self._attempts = 0
        self._damaged_steady: float | None = None
        self._owner: Owner | None = None
        self._name = ""

    @property
    def status(self) -> FollowStatus:
        return self._status

    def run(self, stop: threading.Event) -> None:
        """Follow the log until ``stop`` is set; raises permanent errors."""
        self._cluster.admin()  # Create the admin client now, so that all followers of the cluster share it.
        cluster = dataclasses.replace(self._cluster, timeout_s=min(self._cluster.timeout_s, _TIMEOUT_S))
        dead_letters = DeadLetters(cluster, self.view.dead_topic)
        context = FollowContext(
            self.view, self._flows, cluster, self._clock, dead_letters, self._report, self._max_rows
        )
        try:
            while not stop.is_set():
                try:
                    self._run_session(context, stop)
                except HeadraceError as error:
                    if not (error.retriable or self._may_recover(error)):
                        raise
                    if not stop.is_set():
                        self._wait(error, stop)
                except (KafkaException, TimeoutError) as error:
                    self._wait(_retriable(error, self.view.name), stop)
        finally:
            dead_letters.close()
            self._status = dataclasses.replace(self._status, state="stopped")

    def _run_session(self, context: FollowContext, stop: threading.Event) -> None:
        store = self._open_writer()
        store.stop = stop
        try:
            # Reuse the name until a claim is confirmed: if the response was lost, the claim may have succeeded.
            self._name = self._name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
            self._owner = store.claim(self._name, self._clock.now_ms(), self._owner)
            self._name = ""
            FollowSession(context, store, self._owner).run(stop)
        finally:
            store.close()

    def _may_recover(self, error: HeadraceError) -> bool:
        """Whether to retry although the error is not retriable."""
        if self._owner is None or not isinstance(error, (StoreDamaged, StoreForeign, StoreUnusable)):
            return False
        if isinstance(error, StoreUnusable):
            return True
        if self._damaged_steady is None:
            self._damaged_steady = self._clock.steady()
        return self._clock.steady() - self._damaged_steady < _DAMAGED_S

    def _wait(self, error: HeadraceError, stop: threading.Event) -> None:
        self._report(state="waiting", reason=error.message)
        if not self._is_waiting:
            self._is_waiting = True
            self._print(f"view {self.view.name!r} waits: {error}")
        stop.wait(_BACKOFF_S[min(self._attempts, len(_BACKOFF_S) - 1)])
        self._attempts += 1

    def _report(
        self, *, applied: int = 0, dead: int = 0, foreign: int = 0, repeats: int = 0, **changed: Any
    ) -> None:
        before = self._status
        state = changed.get("state", before.state)
        if state == "rebuilding" and before.state != "rebuilding":
            changed["rebuilds"] = before.rebuilds + 1
            self._print(f"building view {before.view!r} ({changed.get('reason', before.reason)})")
        if dead and not before.dead:
            self._print(
                f"view {before.view!r}: records that do not fit the schema go to topic {self.view.dead_topic!r}"
            )
        if foreign and not before.foreign:
            self._print(
                f"view {before.view!r}: its topic has records that its flow did not write; to list them, run:"
                " headrace verify"
            )
        if state in ("following", "rebuilding") and self._is_waiting:
            self._is_waiting, self._attempts, self._damaged_steady = False, 0, None
            self._print(f"view {before.view!r} continues")
        self._status = dataclasses.replace(
            before,
            applied=before.applied + applied,
            dead=before.dead + dead,
            foreign=before.foreign + foreign,
            repeats=before.repeats + repeats,
            **changed,
        )


def _retriable(error: KafkaException | TimeoutError, view: str) -> LogError:
    """Convert to a retriable error; raises the error if a retry cannot succeed, such as an unknown client property."""
    cause = error if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
    translated = from_kafka(cause, f"following the log for view {view!r}")
    if not translated.retriable:
        raise translated from error
    return translated
