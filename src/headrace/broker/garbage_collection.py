"""Runs Python's garbage collector so that it does not stop the broker for long.

A full collection examines every object that can be part of a reference cycle. With 10,000 partitions it takes a third
of a second, and meanwhile the broker serves no client. Nearly all these objects live as long as their topic. So this
class replaces the full collections of the interpreter: it examines only the objects that are new since its last
collection, and then freezes those that survive, which means that no later collection examines them.

A frozen object is freed as usual when its last reference goes. Only a cycle of frozen objects stays in memory, until a
deep collection examines all objects. That happens when their number has grown, at a time without requests.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from headrace.clock import Clock

__all__ = ["GarbageCollection"]

_NEVER = 2**31 - 1
# A collection of the middle generation examines about 7,000 objects. The survivors are counted after this many.
_MIDDLE_PER_COUNT = 3
_NEW_OBJECTS_MIN = 15_000
_DELAY_S = 0.02
_DELAYS_MAX = 50
_CHECK_S = 5.0
_SHORT_S = 0.02
_GROWTH = 0.25
_GROWTH_OBJECTS = 50_000
_FORCED_GROWTH_OBJECTS = 1_000_000


class GarbageCollection:
    """Collects garbage from ``start`` to ``stop``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        requests: Callable[[], int],
        has_large_request: Callable[[], bool],
    ) -> None:
        """``requests`` returns the number of requests so far, ``has_large_request`` whether a large one is handled."""
        self._loop = loop
        self._clock = clock
        self._requests = requests
        self._has_large_request = has_large_request
        self._delays = 0
        self._requests_before = 0
        self._thresholds = gc.get_threshold()
        self._middle_collections = 0
        self._deep_objects = 0
        self._deep_s = 0.0
        self._newly_frozen = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._collect_all()
        young, middle, _ = self._thresholds
        gc.set_threshold(young, middle, _NEVER)
        gc.callbacks.append(self._after_collection)
        self._timer = self._loop.call_later(_CHECK_S, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            gc.callbacks.remove(self._after_collection)
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()

    def _after_collection(self, phase: str, info: dict[str, int]) -> None:
        """Called by the interpreter, in any thread."""
        if phase == "stop" and info["generation"] == 1:
            self._middle_collections += 1
            if self._middle_collections == _MIDDLE_PER_COUNT:
                self._loop.call_soon_threadsafe(self.collect_new)

    def collect_new(self) -> None:
        """Free the new objects that are garbage, and freeze the others. Few objects are left alone."""
        if self._has_large_request() and self._delays < _DELAYS_MAX:
            # Most of the new objects belong to this request, and are gone when it ends.
            self._delays += 1
            self._loop.call_later(_DELAY_S, self.collect_new)
            return
        self._middle_collections = self._delays = 0
        if len(gc.get_objects(generation=2)) >= _NEW_OBJECTS_MIN:
            gc.collect()
            self._newly_frozen += len(gc.get_objects(generation=2))
            gc.freeze()

    def _check(self) -> None:
        self._timer = self._loop.call_later(_CHECK_S, self._check)
        requests = self._requests()
        is_quiet = requests == self._requests_before
        self._requests_before = requests
        self.collect_deep(is_quiet=is_quiet)

    def collect_deep(self, *, is_quiet: bool) -> None:
        """Examine all objects if many were frozen since the last deep collection.

        If this would take long, wait for a time without requests, unless the objects are very many.
        """
        before, new = self._deep_objects, self._newly_frozen
        if new < before * _GROWTH + _GROWTH_OBJECTS:
            return
        expected_s = self._deep_s * (before + new) / max(before, 1)
        if is_quiet or expected_s <= _SHORT_S:
            self._collect_all()
        elif new >= before + _FORCED_GROWTH_OBJECTS:
            # Most of the new objects can be gone again. Counting those that remain takes some time as well.
            self._newly_frozen = gc.get_freeze_count() - before
            if self._newly_frozen >= before + _FORCED_GROWTH_OBJECTS:
                self._collect_all()

    def _collect_all(self) -> None:
        began = self._clock.steady()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._deep_s = self._clock.steady() - began
        self._deep_objects = gc.get_freeze_count()
        self._newly_frozen = 0
