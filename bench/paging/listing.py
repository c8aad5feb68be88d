"""The list of topics of a log that has many: from opening it until its rows are drawn."""

from __future__ import annotations

import time

from confluent_kafka.admin import NewTopic

from bench.paging.app import SMALL
from bench.paging.stand import PageStand

__all__ = ["measure"]

_LIMIT_MS = 2_000.0
_AT_ONCE = 200


def measure(stand: PageStand) -> None:
    admin = stand.cluster.admin()
    names = [f"listed-{number:05d}" for number in range(stand.plan.topics)]
    for begin in range(0, len(names), _AT_ONCE):
        made = admin.create_topics([NewTopic(one, 1, 1) for one in names[begin : begin + _AT_ONCE]])
        for one in made.values():
            one.result(60)
    peer = f"a limit of {_LIMIT_MS:g} ms"
    with stand.serving(SMALL) as served:
        for _ in range(stand.plan.rounds):
            with stand.screen(served.port) as screen:
                began = time.monotonic()
                screen.page.goto(f"{screen.address}/#/topics")
                screen.page.wait_for_selector('tr[data-key^="listed-"]')
                took_ms = (time.monotonic() - began) * 1_000
            stand.measured.both(
                f"until a list of {len(names):,} topics is drawn", peer, took_ms, _LIMIT_MS, "ms"
            )
