"""A row by its key in a SQLite file: in the event loop as long as that is quick, and by threads where it is not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.faults.flow_by_hand import FlowByHand
from headrace.client.cluster import Cluster
from headrace.serve.route import Answer, Call
from headrace.serve.served import ANYBODY, Served
from headrace.serve.tokens import Tokens, tokens_path
from headrace.serve.view_routes import VIEW_ROUTES
from headrace.settings import ServeSettings
from tests.views.seeing import following

_ROUTE = next(one for one in VIEW_ROUTES if one.path.endswith("{key:path}"))


async def test_rows_by_key_of_a_slow_file_are_read_by_threads(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("slow"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 1, "note": None})])
    view = flow.view
    with following(cluster, view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows)
    served = Served(flow.app, cluster, tmp_path, ServeSettings(threads=1), Tokens(tokens_path(tmp_path)))

    async def ask() -> Answer:
        names = {"view": view.name, "key": "a"}
        return await _ROUTE.handle(Call(served, ANYBODY, _ROUTE, "", names, {}, {}, served.clock.steady()))

    stuck = threading.Event()
    try:
        # The one thread that there is, is taken.
        holding = asyncio.create_task(served.work.run(stuck.wait, 30, view.store))
        while not served.work.under_way:
            await asyncio.sleep(0.001)
        assert (await ask()).status == 200
        served.work.at_once(lambda: time.sleep(0.11), view.store)
        asking = asyncio.create_task(ask())
        while served.work.under_way < 2:
            assert not asking.done()
            await asyncio.sleep(0.001)
        stuck.set()
        assert (await asking).status == 200
        assert await holding
    finally:
        stuck.set()
        served.close()
