"""Watches an app: measures, judges by the rules, and says what changes, to the log first and to people then.

It outlasts a log that does not answer: what could not be judged or written is judged again at the next look. It ends
when somebody else has taken over.
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
from headrace.ops.alerts.alert_log import AlertLog, last_records
from headrace.ops.alerts.record import AlertRecord
from headrace.ops.alerts.states import AlertStates
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import Reader

__all__ = ["AlertWatch"]

_TIMEOUT_S = 10.0


class AlertWatch:
    """``readers`` says where everything is; ``warn`` takes what begins to fire, ``tell`` what is over."""

    def __init__(
        self,
        cluster: Cluster,
        app: str,
        rules: Mapping[str, Rule],
        readers: Callable[[], Sequence[Reader]],
        every_s: float,
        *,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        # One client for all who share the cluster; and an end that does not wait long for a log that is gone.
        cluster.admin()
        self._cluster = dataclasses.replace(cluster, timeout_s=min(cluster.timeout_s, _TIMEOUT_S))
        self._app = app
        self.rules = rules
        self._readers = readers
        self._every_s = every_s
        self._tell = tell
        self._warn = warn
        self._clock = clock or SystemClock()
        self.lags: Sequence[Lag] = ()
        """Of the last look; a new list each time, so that any thread may read it."""
        self.firing: Sequence[AlertRecord] = ()
        self.fired: dict[str, int] = dict.fromkeys(rules, 0)
        """How often each has begun to, since the start."""
        self.looked_ms: int | None = None
        """When it last looked and all was judged and written."""
        self._troubled = False
        self._states = AlertStates(app)

    def run(self, stop: threading.Event) -> None:
        with contextlib.closing(LagMeter(self._cluster, self._clock)) as meter:
            while not stop.is_set():
                with self._outlasting(), self._open() as (log, states):
                    while not stop.is_set():
                        self._look(meter, log, states)
                        stop.wait(self._every_s)
                stop.wait(min(1.0, self._every_s))

    def look_once(self) -> None:
        """What must hold for a while cannot begin to fire by it. Raises what is outlasted otherwise."""
        with contextlib.closing(LagMeter(self._cluster, self._clock)) as meter, self._open() as (log, states):
            self._look(meter, log, states)

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[AlertLog, AlertStates]]:
        with contextlib.closing(AlertLog(self._cluster, self._app)) as log:
            # Only now: whoever wrote before can no longer.
            states = self._states
            states.recall(last_records(self._cluster, self._app).values())
            if not self.firing:
                for one in states.firing:
                    self._tell(f"alert {one.alert} fires still: {one.text}")
            self.firing = states.firing
            yield log, states

    def _look(self, meter: LagMeter, log: AlertLog, states: AlertStates) -> None:
        self.lags = meter.look(self._readers())
        now_ms = self._clock.now_ms()
        changes = states.judge(self.rules, self.lags, self._clock.steady(), now_ms)
        if changes:
            log.write(changes)
            states.accept(changes)
            for one in changes:
                self._say(one)
        self.firing = states.firing
        self.looked_ms = now_ms
        if self._troubled:
            self._troubled = False
            self._tell("alerts are watched again")

    def _say(self, one: AlertRecord) -> None:
        if one.state == "firing":
            self.fired[one.alert] = self.fired.get(one.alert, 0) + 1
            self._warn(f"alert {one.alert}: {one.text} ({one.when})")
        else:
            self._tell(f"alert {one.alert} is over: {one.text}")

    @contextlib.contextmanager
    def _outlasting(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            if not error.retriable:
                raise
            self._wait(error)
        except (KafkaException, TimeoutError) as error:
            told = _told(error)
            if not told.retriable:
                raise told from error
            self._wait(told)

    def _wait(self, error: HeadraceError) -> None:
        if not self._troubled:
            self._troubled = True
            self._warn(f"alerts cannot be watched: {error.message}; it is tried again")


def _told(error: KafkaException | TimeoutError) -> LogError:
    cause = error if isinstance(error, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
    return from_kafka(cause, "watching for alerts")
