"""A follower keeps one view: it opens the store, follows the log, and outlasts what can heal by itself.

A broker that is gone, a store that is locked or full: it waits, longer each time, says so once, and goes on. What
cannot heal (a store that is not ours, a newer follower of the same view) ends ``run`` with the error. But a store that
this follower has had open was ours and whole: if it cannot be used now it is waited for, and if it looks damaged or
somebody else's, somebody may be at work on it, and it is looked at again for a while.
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
from headrace.model.flow import Flow
from headrace.model.view import View
from headrace.views.dead import DeadLetters
from headrace.views.errors import StoreDamaged, StoreForeign, StoreUnusable
from headrace.views.following import Following
from headrace.views.status import Status
from headrace.views.store import Owner, Store

__all__ = ["Follower"]

# So that it is soon said that the log does not answer, and a stop is not kept waiting.
_TIMEOUT_S = 5.0
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_PATIENCE_S = 10.0


class Follower:
    """``open_store`` is called in the thread that runs it, also after a failure. ``tell`` takes a line for a person.
    ``max_rows`` is how many rows one transaction of the store takes, where a batch does not ask for more.
    """

    def __init__(
        self,
        view: View,
        flows: Sequence[Flow],
        cluster: Cluster,
        open_store: Callable[[], Store],
        *,
        clock: Clock | None = None,
        tell: Callable[[str], None] = lambda line: None,
        max_rows: int = 10_000,
    ) -> None:
        self._max_rows = max_rows
        self.view = view
        self._flows = flows
        self._cluster = cluster
        self._open_store = open_store
        self._clock = clock or SystemClock()
        self._tell = tell
        self._status = Status(view.name)
        self._troubled = False
        self._tries = 0
        self._damaged_steady: float | None = None
        self._owner: Owner | None = None
        self._name = ""

    @property
    def status(self) -> Status:
        return self._status

    def run(self, stop: threading.Event) -> None:
        """Follow until ``stop`` is set; raises what cannot heal."""
        self._cluster.admin()  # One for all who share the cluster.
        self._cluster = dataclasses.replace(self._cluster, timeout_s=min(self._cluster.timeout_s, _TIMEOUT_S))
        dead = DeadLetters(self._cluster, self.view.dead_topic)
        try:
            while not stop.is_set():
                try:
                    self._sit(dead, stop)
                except HeadraceError as error:
                    if not (error.retriable or self._may_pass(error)):
                        raise
                    if not stop.is_set():
                        self._wait(error, stop)
                except (KafkaException, TimeoutError) as error:
                    self._wait(_told(error, self.view.name), stop)
        finally:
            dead.close()
            self._status = dataclasses.replace(self._status, state="stopped")

    def _sit(self, dead: DeadLetters, stop: threading.Event) -> None:
        store = self._open_store()
        store.stop = stop
        try:
            # Kept until it is known to be the owner's: whether the store has heard it, who got no answer cannot tell.
            self._name = self._name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
            self._owner = store.take(self._name, self._clock.now_ms(), self._owner)
            self._name = ""
            Following(
                self.view,
                self._flows,
                self._cluster,
                store,
                self._owner,
                self._clock,
                dead,
                self._note,
                self._max_rows,
            ).run(stop)
        finally:
            store.close()

    def _may_pass(self, error: HeadraceError) -> bool:
        """Though it does not heal by itself."""
        if self._owner is None or not isinstance(error, (StoreDamaged, StoreForeign, StoreUnusable)):
            return False
        if isinstance(error, StoreUnusable):
            return True
        if self._damaged_steady is None:
            self._damaged_steady = self._clock.steady()
        return self._clock.steady() - self._damaged_steady < _PATIENCE_S

    def _wait(self, error: HeadraceError, stop: threading.Event) -> None:
        self._note(state="waiting", reason=error.message)
        if not self._troubled:
            self._troubled = True
            self._tell(f"view {self.view.name!r} waits: {error}")
        stop.wait(_BACKOFF_S[min(self._tries, len(_BACKOFF_S) - 1)])
        self._tries += 1

    def _note(
        self, *, applied: int = 0, dead: int = 0, foreign: int = 0, repeats: int = 0, **changed: Any
    ) -> None:
        before = self._status
        state = changed.get("state", before.state)
        if state == "rebuilding" and before.state != "rebuilding":
            changed["rebuilds"] = before.rebuilds + 1
            self._tell(f"view {before.view!r} is built: {changed.get('reason', before.reason)}")
        if dead and not before.dead:
            self._tell(f"view {before.view!r}: values that do not fit go to {self.view.dead_topic!r}")
        if foreign and not before.foreign:
            self._tell(
                f"view {before.view!r}: its topic has records among those of its flow that the flow has not written;"
                " headrace verify names them"
            )
        if state in ("following", "rebuilding") and self._troubled:
            self._troubled, self._tries, self._damaged_steady = False, 0, None
            self._tell(f"view {before.view!r} goes on")
        self._status = dataclasses.replace(
            before,
            applied=before.applied + applied,
            dead=before.dead + dead,
            foreign=before.foreign + foreign,
            repeats=before.repeats + repeats,
            **changed,
        )


def _told(error: KafkaException | TimeoutError, view: str) -> LogError:
    """Raises what waiting cannot mend, such as a property that the client does not know."""
    cause = error if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
    told = from_kafka(cause, f"following the log for view {view!r}")
    if not told.retriable:
        raise told from error
    return told
