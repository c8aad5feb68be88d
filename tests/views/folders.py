"""Views that are kept in folders, followed and looked at as anybody can; and troubles that all of them outlast."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.store import Store as Declared
from headrace.model.view import View
from headrace.ops.report import Report
from headrace.ops.verify import verify_view
from headrace.settings import Settings
from headrace.views.errors import StoreFull
from headrace.views.follower import Follower
from headrace.views.opening import open_store
from headrace.views.position import NO_BATCH
from headrace.views.store import Fence, Part, Store
from tests.contract.see import See
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE, position_of, rows_after
from tests.support.waiting import until, unwatch, watch
from tests.views.seeing import produce

__all__ = ["Shop", "a_writer_is_killed", "a_zombie_wakes", "grown", "without_room"]


@dataclass(frozen=True)
class Order:
    order: str
    amount: int
    note: str = ""


class Shop:
    """A table topic and its view in a folder; ``look`` gives the rows by key, or None."""

    def __init__(
        self,
        cluster: Cluster,
        home: Path,
        name: str,
        store: Declared,
        look: Callable[[str], dict[str, Any] | None],
    ) -> None:
        self.cluster, self.home, self.app = cluster, home, App("shop")
        self.topic = cluster.ensure_topic(name, 1, {}).name
        self.view: View = self.app.view(
            name, self.app.table(name, Order, key="order"), key="order", store=store
        )
        self._look = look
        self.told: list[str] = []

    def write(self, *orders: tuple[str, int | None, str]) -> None:
        records = [
            (
                order.encode(),
                None
                if amount is None
                else json.dumps({"order": order, "amount": amount, "note": note}).encode(),
            )
            for order, amount, note in orders
        ]
        produce(self.cluster, self.topic, records)

    @contextlib.contextmanager
    def following(self) -> Iterator[Follower]:
        stop, problems = threading.Event(), list[BaseException]()
        follower = Follower(
            self.view,
            [],
            self.cluster,
            lambda: open_store(self.view, "shop", self.home),
            tell=self.told.append,
        )

        def run() -> None:
            try:
                follower.run(stop)
            except BaseException as error:
                problems.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        watch(follower, lambda: f"the follower ended: {problems[0]}" if problems else None)
        try:
            yield follower
        finally:
            unwatch(follower)
            stop.set()
            thread.join(60)
        assert not problems, problems

    def expect(self, rows: dict[str, Any]) -> None:
        until(lambda: self._look(self.view.name) == rows, f"{rows}, {self.told}", timeout_s=480)

    def verify(self) -> Report:
        return verify_view(None, self.cluster, self.app, self.view, Settings(data=self.home), (), {})


def grown(store: Store, batches: int) -> Fence:
    """A served view after so many batches; what it must be then: ``rows_after(batches - 1)``."""
    from tests.contract.store_writer import changes_of

    fence = Fence(store.take("a test", 1), 1)
    store.begin(SHAPE, position_of(NO_BATCH), "", fence)
    store.swap(fence)
    for batch in range(batches):
        store.apply(Part.SERVING, changes_of(batch), position_of(batch - 1), position_of(batch), fence)
    return fence


def without_room(see: See) -> None:
    """No file can grow: nothing of the batch is there, and with room it is."""
    with contextlib.closing(see.open()) as store:
        hand = Hand(store)
        hand.serve()
        hand.apply(changes(SHAPE, ("a", 1)))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
        try:
            with pytest.raises(StoreFull) as told:
                hand.apply(changes(SHAPE, *((f"k{one}", one) for one in range(100))))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert told.value.retriable
        assert see.look() == (0, [("a", 1)])
    with contextlib.closing(see.open()) as store:
        again = Hand(store)
        again.position = hand.position
        again.apply(changes(SHAPE, ("b", 2)))
        assert see.look() == (1, [("a", 1), ("b", 2)])


def a_zombie_wakes(see: See, seed: int) -> None:
    """A writer is stopped somewhere in its batches, another takes the view and goes on; the first one is refused."""
    rng = random.Random(seed)
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.store_writer", see.opener()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    for line in writer.stdout:
        if int(line) >= 2:
            break
    threading.Event().wait(rng.uniform(0, 0.02))
    os.kill(writer.pid, signal.SIGSTOP)
    try:
        with contextlib.closing(see.open()) as store:
            hand = Hand(store)
            standing = store.standing(Part.SERVING)
            assert standing is not None
            hand.position = standing.position
            batch = standing.position.batch
            assert see.look() == (batch, rows_after(batch))
            hand.apply(changes(SHAPE, ("mine", 1)))
            os.kill(writer.pid, signal.SIGCONT)
            told = writer.stderr.read()
            assert writer.wait(60) != 0
            assert "StaleWriter" in told, told
            assert f"epoch {hand.owner.epoch} " in told
            hand.apply(changes(SHAPE, ("mine", 2)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            writer.kill()
        writer.wait()
        writer.stdout.close()
        writer.stderr.close()
    rows = sorted([row for row in rows_after(batch) if row[0] != "mine"] + [("mine", 2)])
    assert see.look() == (batch + 2, rows)


def a_writer_is_killed(see: See, rounds: int, seed: int) -> None:
    """Again and again, somewhere in a batch: rows and position are of one batch, and nothing is left that grows."""
    rng, last = random.Random(seed), -2
    for _ in range(rounds):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store_writer", see.opener()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        wanted = rng.randint(1, 4)
        for line in writer.stdout:
            if int(line) >= last + wanted:
                break
        threading.Event().wait(rng.uniform(0, 0.03))
        writer.kill()
        writer.wait()
        writer.stdout.close()
        found = see.look()
        assert found is not None
        assert found[0] > last
        assert found[1] == rows_after(found[0])
        last = found[0]


def taken_away(path: Path) -> None:
    """In one step, as a disk goes."""
    away = path.with_name(f"{path.name}.away")
    path.rename(away)
    shutil.rmtree(away)
