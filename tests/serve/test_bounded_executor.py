"""Threads for blocking work: bounded, and a store that hangs never occupies all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.views.follower_thread import following
from faults.views.scripted_flow import ScriptedFlow
from headrace.broker.net.client_limits import Account
from headrace.client.cluster import Cluster
from headrace.serve.errors import TooBusy
from headrace.serve.features import Features
from headrace.serve.http.context import ServeContext
from headrace.serve.http.executor import BoundedExecutor
from headrace.serve.http.route import Request, Response
from headrace.serve.http.tokens import LOCAL_ADMIN, TokenVerifier, tokens_path
from headrace.serve.query.view_queries import ViewQueries
from headrace.settings import ServeSettings
from headrace.stores.errors import QueryTimedOut


async def test_a_store_that_hangs_leaves_threads_for_other_stores() -> None:
    work, release = BoundedExecutor(4, 20), threading.Event()
    stuck_calls = [asyncio.create_task(work.run(release.wait, 30, "stuck")) for _ in range(10)]
    try:
        for _ in range(20):
            assert await work.run(lambda: "fine", 30, "other") == "fine"
        assert work.under_way == 10
        with pytest.raises(TooBusy, match="of one store or the log"):
            await work.run(release.wait, 0.01, "stuck")
        # A waiter that times out leaves the queue.
        assert work.under_way == 10
    finally:
        release.set()
        assert await asyncio.gather(*stuck_calls) == [True] * 10
    assert work.under_way == 0
    assert await work.run(lambda: "again", 30, "stuck") == "again"
    work.close()


async def test_a_cancelled_waiter_keeps_its_slot_until_the_work_ends() -> None:
    work, started, release = BoundedExecutor(1, 1), threading.Event(), threading.Event()

    def wait_for_release() -> None:
        started.set()
        release.wait()

    request = asyncio.create_task(work.run(wait_for_release, 30, "one"))
    while not started.is_set():
        await asyncio.sleep(0.001)
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    assert work.under_way == 1
    second = asyncio.create_task(work.run(lambda: 2, 30))
    await asyncio.sleep(0)
    with pytest.raises(TooBusy, match="limit 2"):
        await work.run(lambda: 3, 30)
    release.set()
    assert await second == 2
    while work.under_way:
        await asyncio.sleep(0.001)
    work.close()


async def test_the_caller_gets_the_error_of_the_work_or_a_timeout() -> None:
    work, release = BoundedExecutor(2, 2), threading.Event()
    with pytest.raises(ZeroDivisionError):
        await work.run(lambda: 1 // 0, 30)
    with pytest.raises(QueryTimedOut):
        # The executor adds two seconds of grace, so -1.99 leaves 10 ms.
        await work.run(release.wait, -1.99)
    work.close()
    release.set()


async def test_slow_inline_work_moves_to_threads_for_a_while() -> None:
    work = BoundedExecutor(1, 1)
    for store in ("stalls", "drags", "fine"):
        assert work.may_run_inline(store)
    with pytest.raises(ZeroDivisionError):
        work.run_inline(lambda: _slowly(0.11) // 0, "stalls")
    assert not work.may_run_inline("stalls")
    for _ in range(16):
        assert work.run_inline(lambda: _slowly(0.01), "drags") == 1
    assert not work.may_run_inline("drags")
    assert work.may_run_inline("fine")
    work.close()


def _slowly(seconds: float) -> int:
    time.sleep(seconds)
    return 1


_ROUTE = next(route for route in ViewQueries.routes if route.path.endswith("{key:path}"))


async def test_rows_of_a_slow_sqlite_file_are_read_by_threads(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("slow"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 1, "note": None})])
    view = flow.view
    with following(cluster, view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows)
    settings = ServeSettings(threads=1)
    context = ServeContext.of(flow.app, cluster, tmp_path, settings)
    tokens = TokenVerifier(tokens_path(tmp_path))
    features = Features(context, settings, tokens, Account("answers", 1 << 20), None, lambda out: None)
    executor = context.executor
    handle = next(handler for route, handler in features.handlers() if route is _ROUTE)

    async def send() -> Response:
        names = {"view": view.name, "key": "a"}
        return await handle(Request(LOCAL_ADMIN, _ROUTE, "", names, {}, {}, context.clock.steady()))

    release = threading.Event()
    try:
        # Occupy the only thread.
        occupying = asyncio.create_task(executor.run(release.wait, 30, view.store))
        while not executor.under_way:
            await asyncio.sleep(0.001)
        assert (await send()).status == 200
        executor.run_inline(lambda: time.sleep(0.11), view.store)
        pending = asyncio.create_task(send())
        while executor.under_way < 2:
            assert not pending.done()
            await asyncio.sleep(0.001)
        release.set()
        assert (await pending).status == 200
        assert await occupying
    finally:
        release.set()
        await features.close()
