"""Runs all generations of a run's flows that its functions began, not only the serving ones.

After ``flow rebuild`` a flow has two generations with the same function: the serving one, and one that is being built.
After the switch, the old one is kept until it is dropped, by the operator or after ``switch.keep_s`` seconds.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.client.errors import LogError
from headrace.client.generations import GenerationsCache
from headrace.client.generations_writer import drop_generation
from headrace.clock import Clock, SystemClock
from headrace.flow.context import FlowContext
from headrace.flow.generation_choice import derivable
from headrace.flow.runner import FlowRunner
from headrace.model.generations import FlowGenerations, GenerationServes, GenerationUnknown
from headrace.runtime.part import Part

if TYPE_CHECKING:
    from headrace.runtime.run import Run

__all__ = ["BesideFlows"]

_CHECK_S = 1.0


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
        self._drop_old(context, generations)
        index = next(
            index for index, runner in enumerate(self._run.flows) if runner.status.name == context.flow.name
        )
        main = self._run.flows[index]
        for entry in derivable(context, generations):
            key = (context.flow.name, entry.number)
            if entry.number != main.number and main.number and key not in self._beside:
                runner = FlowRunner(context, entry.number, note=self._run.note)
                self._beside[key] = runner
                self._run.start_part(
                    Part(f"flow {context.flow.name} (generation {entry.number})", runner.run, stop)
                )
        serving = self._beside.pop((context.flow.name, generations.serving), None)
        if serving is not None:
            self._run.flows[index] = serving
            self._beside[context.flow.name, main.number] = main

    def _drop_old(self, context: FlowContext, generations: FlowGenerations) -> None:
        keep_ms = self._run.settings.switch.keep_s * 1_000
        for entry in generations.kept:
            if keep_ms and self._clock.now_ms() - entry.kept_ms > keep_ms:
                try:
                    drop_generation(self._cluster, context.flow, entry.number)
                except (GenerationServes, GenerationUnknown):
                    # The operator was faster.
                    continue
                self._run.note(
                    f"flow {context.flow.name}: dropped generation {entry.number}, kept for"
                    f" {self._run.settings.switch.keep_s} s after the switch"
                )
