"""Garbage of the broker is freed, and its long-lived objects are not examined again and again."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from headrace.broker.garbage_collection import GarbageCollection
from headrace.clock import SystemClock

OBJECTS = 60_000


class Node:
    """A node of a reference cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


def cycle() -> tuple[Node, Node]:
    first, second = Node(), Node()
    first.other, second.other = second, first
    return first, second


@pytest.fixture
def collection(event_loop_of_test: asyncio.AbstractEventLoop) -> Iterator[GarbageCollection]:
    collection = GarbageCollection(event_loop_of_test, SystemClock(), lambda: 0, lambda: False)
    collection.start()
    try:
        yield collection
    finally:
        collection.stop()


@pytest.fixture
def event_loop_of_test() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def run_briefly(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def test_new_garbage_is_freed_while_many_objects_are_created(
    collection: GarbageCollection, event_loop_of_test: asyncio.AbstractEventLoop
) -> None:
    first, _ = cycle()
    # Both nodes are in the oldest generation now, which the interpreter itself no longer examines.
    gc.collect(1)
    gc.collect(1)
    is_freed = weakref.ref(first)
    del first, _
    kept = [[number] for number in range(3 * OBJECTS)]
    run_briefly(event_loop_of_test)
    assert is_freed() is None
    assert len(kept) == 3 * OBJECTS


def test_objects_that_survive_are_not_examined_again(
    collection: GarbageCollection, event_loop_of_test: asyncio.AbstractEventLoop
) -> None:
    frozen = gc.get_freeze_count()
    kept = [[number] for number in range(OBJECTS)]
    collection.collect_new()
    assert gc.get_freeze_count() >= frozen + OBJECTS
    assert len(gc.get_objects()) < OBJECTS
    assert len(kept) == OBJECTS


def test_few_new_objects_are_not_collected(collection: GarbageCollection) -> None:
    frozen = gc.get_freeze_count()
    collection.collect_new()
    assert gc.get_freeze_count() <= frozen


def test_a_collection_waits_for_the_end_of_a_large_request(
    event_loop_of_test: asyncio.AbstractEventLoop,
) -> None:
    has_large_request = True
    collection = GarbageCollection(event_loop_of_test, SystemClock(), lambda: 0, lambda: has_large_request)
    collection.start()
    try:
        frozen = gc.get_freeze_count()
        kept = [[number] for number in range(OBJECTS)]
        collection.collect_new()
        assert gc.get_freeze_count() < frozen + OBJECTS
        has_large_request = False
        event_loop_of_test.run_until_complete(asyncio.sleep(0.1))
        assert gc.get_freeze_count() >= frozen + OBJECTS
        assert len(kept) == OBJECTS
    finally:
        collection.stop()


def test_garbage_among_frozen_objects_is_freed_at_a_quiet_time(collection: GarbageCollection) -> None:
    first, second = cycle()
    is_freed = weakref.ref(first)
    kept = [[number] for number in range(2 * OBJECTS + gc.get_freeze_count())]
    collection.collect_new()
    del first, second
    gc.collect()
    assert is_freed() is not None
    collection.collect_deep(is_quiet=True)
    assert is_freed() is None
    assert len(kept) > 2 * OBJECTS


def test_a_deep_collection_waits_until_there_are_many_new_objects(collection: GarbageCollection) -> None:
    first, second = cycle()
    is_freed = weakref.ref(first)
    gc.freeze()
    del first, second
    collection.collect_deep(is_quiet=True)
    assert is_freed() is not None


def test_the_interpreter_collects_as_before_after_the_stop(
    event_loop_of_test: asyncio.AbstractEventLoop,
) -> None:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    collection = GarbageCollection(event_loop_of_test, SystemClock(), lambda: 0, lambda: False)
    collection.start()
    assert gc.get_threshold()[2] > 1_000_000
    collection.stop()
    assert gc.get_threshold() == thresholds
    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0
