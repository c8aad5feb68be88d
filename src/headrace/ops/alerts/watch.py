"""Watches an app for alerts: measures lags, evaluates the rules, writes changes to the log and prints them.

While the log does not respond, the watcher retries. It ends when another watcher takes over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError
from headrace.model.rule import Rule
from headrace.ops.alerts.alert_log import AlertLog, AlertRecord, last_records
from headrace.ops.alerts.command import AlertCommand
from headrace.ops.alerts.states import AlertStates
from headrace.ops.lag.monitor import LagMonitor

__all__ = ["AlertWatch"]

_TIMEOUT_S = 10.0


class AlertWatch:
    """``warn`` prints alerts that fire. ``note`` prints alerts that are resolved. ``command`` runs for both."""

    def __init__(
        self,
        cluster: Cluster,
        monitor: LagMonitor,
        rules: Mapping[str, Rule],
        every_s: float,
        *,
        note: Callable[[str], None],
        warn: Callable[[str], None],
        command: AlertCommand | None = None,
        clock: Clock | None = None,
    ) -> None:
        # Create the admin client first, so that the copy of the cluster shares it. The copy has a short
        # timeout, so that a stop does not wait long for a log that does not respond.
        cluster.admin()
        self._cluster = dataclasses.replace(cluster, timeout_s=min(cluster.timeout_s, _TIMEOUT_S))
        self._app = monitor.app.name
        self._monitor = monitor
        self.rules = rules
        self._every_s = every_s
        self._note = note
        self._warn = warn
        self.command = command
        self._clock = clock or SystemClock()
        self.firing: Sequence[AlertRecord] = ()
        self.fired: dict[str, int] = dict.fromkeys(rules, 0)
        """How often each alert started to fire since this process started."""
        self.evaluated_ms: int | None = None
        """When the rules were last evaluated and all changes were written."""
        self._is_waiting = False
        self._states = AlertStates(self._app)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._retrying(), self._open() as log:
                while not stop.is_set():
                    self._evaluate(log)
                    stop.wait(self._every_s)
            stop.wait(min(1.0, self._every_s))

    def evaluate_once(self) -> None:
        """Evaluate the rules once. A rule with a minimum duration cannot start to fire, because that needs several
        evaluations. No error is retried.
        """
        with self._open() as log:
            self._evaluate(log)

    @contextlib.contextmanager
    def _open(self) -> Iterator[AlertLog]:
        with contextlib.closing(AlertLog(self._cluster, self._app)) as log:
            # Read the last records only now, because earlier watchers can no longer write.
            states = self._states
            states.load(last_records(self._cluster, self._app).values())
            if not self.firing:
                for record in states.firing:
                    self._note(f"alert {record.alert} is still firing: {record.text}")
            self.firing = states.firing
            yield log

    def _evaluate(self, log: AlertLog) -> None:
        states = self._states
        lags = [*self._monitor.measure(full=True).lags.values(), *self._monitor.measure_groups()]
        now_ms = self._clock.now_ms()
        changes = states.evaluate(self.rules, lags, self._clock.steady(), now_ms)
        if changes:
            log.write(changes)
            states.accept(changes)
            for record in changes:
                self._report(record)
        self.firing = states.firing
        self.evaluated_ms = now_ms
        if self._is_waiting:
            self._is_waiting = False
            self._note("watching for alerts again")

    def _report(self, record: AlertRecord) -> None:
        if self.command is not None:
            self.command.submit(record)
        if record.state == "firing":
            self.fired[record.alert] = self.fired.get(record.alert, 0) + 1
            self._warn(f"alert {record.alert}: {record.text} ({record.when})")
        else:
            self._note(f"alert {record.alert} is resolved: {record.text}")

    @contextlib.contextmanager
    def _retrying(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            if not error.retriable:
                raise
            self._wait(error)
        except (KafkaException, TimeoutError) as error:
            translated = _translate(error)
            if not translated.retriable:
                raise translated from error
            self._wait(translated)

    def _wait(self, error: HeadraceError) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._warn(f"cannot watch for alerts: {error.message}; retrying")


def _translate(error: KafkaException | TimeoutError) -> LogError:
    cause = error if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
    return from_kafka(cause, "watching for alerts")
