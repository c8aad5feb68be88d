"""Runs all generations of a run's flows that its functions began, not only the serving ones.

After ``flow rebuild`` a flow has two generations with the same function: the serving one, and one that is being built.
After the switch, the old one is kept until it is dropped, by the operator or after ``switch.keep_s`` seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.generations import GenerationsCache
from headrace.client.generations_writer import drop_generation
from headrace.clock import Clock, SystemClock
from headrace.flow.context import FlowContext
from headrace.flow.generation_choice import derivable, may_derive_beside
from headrace.flow.runner import FlowRunner
from headrace.model.declarations import Declared, Flow
from headrace.model.generations import (
    Entry,
    FlowGenerations,
    GenerationRead,
    GenerationServes,
    GenerationUnknown,
)
from headrace.runtime.part import Part

if TYPE_CHECKING:
    from headrace.runtime.run import Run

__all__ = ["BesideFlows", "KeptGenerations"]

_CHECK_S = 1.0
_DROP_AGAIN_S = 60.0


class BesideFlows:
    """``run.flows`` always has one runner per flow: that of the serving generation, if this process derives it."""

    def __init__(self, run: Run, clock: Clock | None = None) -> None:
        self._run = run
        self._cluster = run.cluster
        self._clock = clock or SystemClock()
        self._cache = GenerationsCache(run.cluster, self._clock)
        self._contexts: dict[str, FlowContext] = {}
        self._beside: dict[tuple[str, int], FlowRunner] = {}
        self._lock = threading.Lock()
        self._kept = KeptGenerations(run.cluster, run.app, run.settings.switch.keep_s, run.note, self._clock)

    def add(self, context: FlowContext) -> None:
        with self._lock:
            self._contexts[context.flow.name] = context

    @property
    def runners(self) -> list[FlowRunner]:
        """The runners that are not in ``run.flows``."""
        return [*self._beside.values()]

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(_CHECK_S):
            with self._lock:
                contexts = list(self._contexts.values())
            try:
                for context in contexts:
                    self._update(context, stop)
            except LogError:
                # The log does not respond. The flows report it.
                continue

    def _update(self, context: FlowContext, stop: threading.Event) -> None:
        generations = self._cache.get(context.flow)
        if generations is None:
            return
        self._kept.drop_expired(context.flow, generations)
        index = next(
            index for index, runner in enumerate(self._run.flows) if runner.status.name == context.flow.name
        )
        main = self._run.flows[index]
        for entry in derivable(context, generations):
            key = (context.flow.name, entry.number)
            is_other = entry.number != main.number and main.number and key not in self._beside
            if is_other and may_derive_beside(self._cluster, generations, entry, self._clock.now_ms()):
                runner = FlowRunner(context, entry.number, note=self._run.note)
                self._beside[key] = runner
                self._run.start_part(
                    Part(f"flow {context.flow.name} (generation {entry.number})", runner.run, stop)
                )
        serving = self._beside.pop((context.flow.name, generations.serving), None)
        if serving is not None:
            self._run.flows[index] = serving
            self._beside[context.flow.name, main.number] = main


class KeptGenerations:
    """Drops the generations that no longer serve, ``keep_s`` seconds after the switch (0: never)."""

    def __init__(
        self, cluster: Cluster, app: Declared, keep_s: int, note: Callable[[str], None], clock: Clock
    ) -> None:
        self._cluster = cluster
        self._app = app
        self._keep_s = keep_s
        self._note = note
        self._clock = clock
        self._refused_s: dict[tuple[str, int], float] = {}
        """When a generation could not be dropped, because a flow reads its rows."""

    def drop_expired(self, flow: Flow, generations: FlowGenerations) -> None:
        for entry in generations.superseded:
            self._drop(flow, entry, "another generation replaced it before it served")
        for entry in generations.kept:
            if self._keep_s and self._clock.now_ms() - entry.kept_ms > self._keep_s * 1_000:
                self._drop(flow, entry, f"kept for {self._keep_s} s after the switch")

    def _drop(self, flow: Flow, entry: Entry, why: str) -> None:
        key, now = (flow.name, entry.number), self._clock.steady()
        if now - self._refused_s.get(key, float("-inf")) < _DROP_AGAIN_S:
            return
        try:
            drop_generation(self._cluster, self._app, flow, entry.number)
        except GenerationRead as error:
            if key not in self._refused_s:
                self._note(error.message)
            self._refused_s[key] = now
        except (GenerationServes, GenerationUnknown):
            # The operator was faster.
            return
        else:
            self._note(f"flow {flow.name}: dropped generation {entry.number}, {why}")
