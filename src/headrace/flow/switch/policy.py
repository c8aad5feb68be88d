"""Decides when a flow switches to a generation that is being built.

The generation must have caught up with the serving one, and so must the generations upstream that it reads. All flows
downstream must have switched before, to generations that read this one. Then the rows are compared. If the difference
is within the limits, the flow switches. Otherwise the generation is built further, and waits for the operator.

If another process began a switch and died, the driver cancels that switch, so the flow does not wait for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from headrace.app_argument import app_argument
from headrace.client.errors import LogError
from headrace.client.generations import find_generations, generations_of
from headrace.client.generations_writer import GenerationsWriter, cancel_abandoned_switch
from headrace.client.progress import current
from headrace.clock import Clock, SystemClock
from headrace.flow.context import FlowContext
from headrace.flow.errors import SwitchUnderWay
from headrace.flow.switch.comparison import Comparison
from headrace.flow.switch.coverage import Coverage
from headrace.flow.switch.operation import SwitchOperation, SwitchRefused
from headrace.flow.switch.report import SwitchReport
from headrace.model.generations import FlowGenerations
from headrace.model.graph import downstream
from headrace.model.progress import Batch, Generation

__all__ = ["SwitchPolicy"]

_CHECK_S = 1.0
_CHECK_SETTLED_S = 10.0
_COMPARE_AGAIN_S = 30.0
_COVER_S = 10.0
_COVER_S_MAX = 60.0
_AS_LONG = 1.5
_POSTPONE_S = 5.0


class SwitchPolicy:
    """The driver of the generation calls ``poll`` often, and ``switch`` when ``is_due``, without an open writer."""

    def __init__(
        self,
        context: FlowContext,
        generation: Generation,
        note: Callable[[str], None],
        clock: Clock | None = None,
        *,
        pause_s: float = 0.0,
    ) -> None:
        """``pause_s``: how long to wait before an attempt to switch, after one that failed."""
        self._context = context
        self._flow = context.flow
        self._cluster = context.cluster
        self._generation = generation
        self._number = generation.generation
        self._note = note
        self._clock = clock or SystemClock()
        self._is_inert = context.flow.is_realtime
        self._next_s = self._clock.steady() + pause_s if pause_s else 0.0
        self._operation: SwitchOperation | None = None
        self._comparison: Comparison | None = None
        self._deadline_s = 0.0
        self._wait_s = _COVER_S
        self._coverage: Coverage | None = None
        self._coverage_s = 0.0
        self._took_s = 0.0
        """How long it took to read what the serving generation had read."""
        self._checked_limits_s = float("-inf")
        """What the serving generation had read at the first check. New records arrive all the time, so this generation
        must reach only this position.
        """
        self._waits_for = ""
        self.is_due = False
        """Whether the driver must stop its engine and call ``switch``."""

    @property
    def is_switching(self) -> bool:
        """Whether this driver is attempting a switch."""
        return self._operation is not None

    def poll(self, last: Batch | None) -> None:
        now = self._clock.steady()
        if self._is_inert or self.is_due or now < self._next_s:
            return
        if self._operation is not None:
            self._wait_until_covered(self._operation, last, now)
            return
        self._next_s = now + _CHECK_S
        generations = generations_of(self._cluster, self._flow)
        if generations is None:
            return
        # Raises an error if the generation was dropped.
        generations.expect(self._number)
        role = generations.role(self._number)
        if generations.switching:
            # If another driver cancels it at the same time, this writer is refused.
            with contextlib.suppress(LogError):
                cancel_abandoned_switch(self._cluster, self._flow, self._clock.now_ms())
        elif role == "serving" and not generations.is_published:
            self._begin(generations, now)
        elif role != "building":
            # A switch ends the engine, so the role cannot change unnoticed.
            self._next_s = now + _CHECK_SETTLED_S
        elif self._has_caught_up(generations, last) and self._may_switch(generations, now):
            self._compare(generations, now)

    def switch(self) -> bool:
        """Complete the switch, and return whether that was possible. Afterwards the driver opens the generation again,
        whatever its role is then.
        """
        operation, comparison = self._operation, self._comparison
        assert operation is not None, "is_due is set while a switch is under way"
        assert comparison is not None
        try:
            is_back = self._is_serving()
            report = operation.complete(comparison, None if is_back else self._context.options.switch)
            self._note(f"{report.line()}; generation {self._number} serves now")
            for line in report.sample_lines():
                self._note(line)
        except (SwitchRefused, LogError) as error:
            self._say(str(error))
            return False
        else:
            return True
        finally:
            self.close()

    def _is_serving(self) -> bool:
        generations = generations_of(self._cluster, self._flow)
        return generations is not None and generations.serving == self._number

    def close(self) -> None:
        """Cancel the current attempt to switch."""
        comparison, self._comparison = self._comparison, None
        if comparison is not None:
            comparison.close()
        self._cancel()

    def _cancel(self) -> None:
        """Cancel the current attempt to switch. The next attempt compares only what is new."""
        operation, self._operation = self._operation, None
        if operation is not None:
            operation.close()

    # Conditions

    def _has_caught_up(self, generations: FlowGenerations, last: Batch | None) -> bool:
        """Whether the generation has read what the serving one had read a few seconds ago.

        The serving generation continues meanwhile, and pauses during a switch. So a position from the time when this
        generation began is not enough.
        """
        now = self._clock.steady()
        if self._coverage is not None:
            if not self._coverage.is_reached(last):
                return False
            before_s, self._took_s = self._took_s, now - self._coverage_s
            # If it took about as long as the time before, it is the time of a batch and will not become shorter.
            if self._took_s <= max(_COVER_S, before_s * _AS_LONG):
                return True
        serving = current(self._cluster, generations.serving_entry.progress)
        if serving is None:
            return False
        self._coverage, self._coverage_s = Coverage(self._cluster, serving, self._generation), now
        return self._coverage.is_reached(last)

    def _may_switch(self, generations: FlowGenerations, now: float) -> bool:
        """Whether no generation upstream needs an operator, and all flows downstream have switched."""
        if self._waits_for_upstream():
            return False
        waiting = self._flows_that_wait()
        if not waiting:
            return True
        if self._context.options.switch.auto and now - self._checked_limits_s > _COMPARE_AGAIN_S:
            self._checked_limits_s = now
            self._record_limits(now)
        elif generations.expect(self._number).is_within_limits:
            self._say(
                f"flow {self._flow.name}: generation {self._number} has caught up; it serves after flow"
                f" {', '.join(waiting)} has switched"
            )
        return False

    def _waits_for_upstream(self) -> bool:
        """Whether the rows that this generation reads are of a generation that may need an operator to serve."""
        for source in self._generation.inputs:
            upstream = find_generations(self._cluster, source.topic)
            entries = upstream.entries if upstream is not None else ()
            writer = next((entry for entry in entries if entry.topic == source.log), None)
            if upstream is None or writer is None or upstream.role(writer.number) != "building":
                continue
            if not writer.is_within_limits:
                self._say(
                    f"flow {self._flow.name}: generation {self._number} has caught up; it serves when the difference of"
                    f" generation {writer.number} of flow {upstream.flow}, which it reads, is within the limits or"
                    " accepted"
                )
                return True
        return False

    def _record_limits(self, now: float) -> None:
        """Compare the rows, and record whether they are within the limits, so that flows downstream can switch."""
        generations = generations_of(self._cluster, self._flow)
        if generations is None:
            return
        is_within_limits = not self._refuse(self._compared(generations), now)
        # The comparison can take long. A writer would cancel a switch that began meanwhile.
        generations = generations_of(self._cluster, self._flow)
        if generations is None or generations.switching:
            return
        if generations.expect(self._number).is_within_limits != is_within_limits:
            with GenerationsWriter(self._cluster, self._flow) as writer:
                recorded = writer.read()
                entry = msgspec.structs.replace(
                    recorded.expect(self._number), is_within_limits=is_within_limits
                )
                writer.write(recorded.with_entry(entry))

    def _flows_that_wait(self) -> list[str]:
        """Return the flows downstream whose serving generation does not read this generation's rows."""
        waiting = []
        topic = self._flow.writes
        for flow in downstream(self._context.app, self._flow):
            if topic.name not in [each.name for each in flow.reads]:
                continue
            generations = generations_of(self._cluster, flow)
            if generations is None:
                continue
            progress = current(self._cluster, generations.serving_entry.progress)
            if progress is None:
                continue
            if self._generation.output not in [source.log for source in progress.generation.inputs]:
                waiting.append(flow.name)
        return waiting

    def _compare(self, generations: FlowGenerations, now: float) -> None:
        if not self._context.options.switch.auto:
            self._say(
                f"flow {self._flow.name}: generation {self._number} has caught up; to switch, run:"
                f" headrace generation switch {app_argument()} {self._flow.name} {self._number}"
            )
            self._next_s = now + _COMPARE_AGAIN_S
            return
        self._begin(generations, now)

    def _begin(self, generations: FlowGenerations, now: float) -> None:
        """Compare the rows, and begin the switch unless the difference exceeds the limits."""
        report = self._compared(generations)
        if self._number != generations.serving and self._refuse(report, now):
            return
        self._operation = SwitchOperation(self._cluster, self._flow, self._number, self._clock)
        self._wait_s = min(max(_COVER_S, 2 * self._took_s), _COVER_S_MAX)
        self._deadline_s = now + self._wait_s
        try:
            self._operation.begin()
        except (LogError, SwitchRefused, SwitchUnderWay) as error:
            self._postpone(str(error), now)

    def _compared(self, generations: FlowGenerations) -> SwitchReport:
        if self._comparison is None:
            self._comparison = Comparison(self._cluster, self._flow, generations.expect(self._number))
        return self._comparison.report(generations)

    def _refuse(self, report: SwitchReport, now: float) -> bool:
        exceeded = report.exceeded(self._context.options.switch)
        if exceeded:
            self._say(
                f"{report.line()}; it waits for you, because {'; '.join(exceeded)}; to see examples, run headrace"
                f" generation compare {app_argument()} {self._flow.name} {self._number}; to switch nevertheless, run:"
                f" headrace generation switch {app_argument()} {self._flow.name} {self._number}"
            )
            self._next_s = now + _COMPARE_AGAIN_S
        return bool(exceeded)

    def _wait_until_covered(self, operation: SwitchOperation, last: Batch | None, now: float) -> None:
        try:
            operation.check()
            is_covered = operation.is_covered(last)
        except LogError as error:
            self._postpone(str(error), now)
            return
        if is_covered:
            self.is_due = True
        elif now > self._deadline_s:
            self._postpone(f"generation {self._number} did not catch up within {self._wait_s:.0f} s", now)

    def _postpone(self, why: str, now: float) -> None:
        self._say(f"flow {self._flow.name}: the switch to generation {self._number} is postponed: {why}")
        self._cancel()
        self._coverage = None
        self._next_s = now + _POSTPONE_S

    def _say(self, text: str) -> None:
        """Print each line only once."""
        if text != self._waits_for:
            self._waits_for = text
            self._note(text)
