"""A table topic with a view in a folder, and checks of faults that every store in a folder must survive."""

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

from faults.stores.port import StoreFixture
from faults.views.follower_thread import produce
from faults.wait import until, unwatch, watch
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.follow.follower import Follower
from headrace.model.declarations import View
from headrace.model.store import Store as Declared
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import verify_view
from headrace.settings import Settings
from headrace.stores.errors import StoreFull
from headrace.stores.position import NO_BATCH
from headrace.stores.registry import open_writer
from headrace.stores.writer import Fence, Part, StoreWriter
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA, position_of, rows_after

__all__ = ["Shop", "apply_batches", "check_full_disk", "check_killed_writers", "check_zombie_is_rejected"]


@dataclass(frozen=True)
class Order:
    order: str
    amount: int
    note: str = ""


class Shop:
    """A table topic and its view in a folder; ``read_rows`` returns the rows by key, or None."""

    def __init__(
        self,
        cluster: Cluster,
        home: Path,
        name: str,
        store: Declared,
        read_rows: Callable[[str], dict[str, Any] | None],
    ) -> None:
        self.cluster, self.home, self.app = cluster, home, App("shop")
        self.topic = cluster.ensure_topic(name, 1, {}).name
        self.view: View = self.app.view(
            name, self.app.table(name, Order, key="order"), key="order", store=store
        )
        self._read_rows = read_rows
        self.lines: list[str] = []

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
            lambda: open_writer(self.view, "shop", self.home),
            print_line=self.lines.append,
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
        until(lambda: self._read_rows(self.view.name) == rows, f"{rows}, {self.lines}", timeout_s=480)

    def verify(self) -> Report:
        return verify_view(None, self.cluster, self.app, self.view, Settings(data=self.home), (), {})


def apply_batches(store: StoreWriter, batches: int) -> Fence:
    """Serve a view and apply this many batches. Its rows are then ``rows_after(batches - 1)``."""
    from tests.contract.store_writer import changes_of

    fence = Fence(store.claim("a test", 1), 1)
    store.begin(SCHEMA, position_of(NO_BATCH), "", fence)
    store.swap(fence)
    for batch in range(batches):
        store.apply(Part.SERVING, changes_of(batch), position_of(batch - 1), position_of(batch), fence)
    return fence


def check_full_disk(backend: StoreFixture) -> None:
    """While files cannot grow, a batch fails completely. When they can grow again, a batch is applied."""
    with contextlib.closing(backend.open()) as store:
        driver = StoreDriver(store)
        driver.serve()
        driver.apply(changes(SCHEMA, ("a", 1)))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
        try:
            with pytest.raises(StoreFull) as result:
                driver.apply(changes(SCHEMA, *((f"k{number}", number) for number in range(100))))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert result.value.retriable
        assert backend.read() == (0, [("a", 1)])
    with contextlib.closing(backend.open()) as store:
        reopened = StoreDriver(store)
        reopened.position = driver.position
        reopened.apply(changes(SCHEMA, ("b", 2)))
        assert backend.read() == (1, [("a", 1), ("b", 2)])


def check_zombie_is_rejected(backend: StoreFixture, seed: int) -> None:
    """Stop a writer between or during batches. Another writer claims the view. The first writer then fails."""
    rng = random.Random(seed)
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.store_writer", backend.opener()],
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
        with contextlib.closing(backend.open()) as store:
            driver = StoreDriver(store)
            state = store.state(Part.SERVING)
            assert state is not None
            driver.position = state.position
            batch = state.position.batch
            assert backend.read() == (batch, rows_after(batch))
            driver.apply(changes(SCHEMA, ("mine", 1)))
            os.kill(writer.pid, signal.SIGCONT)
            result = writer.stderr.read()
            assert writer.wait(60) != 0
            assert "StaleWriter" in result, result
            assert f"epoch {driver.owner.epoch} " in result
            driver.apply(changes(SCHEMA, ("mine", 2)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            writer.kill()
        writer.wait()
        writer.stdout.close()
        writer.stderr.close()
    rows = sorted([row for row in rows_after(batch) if row[0] != "mine"] + [("mine", 2)])
    assert backend.read() == (batch + 2, rows)


def check_killed_writers(backend: StoreFixture, rounds: int, seed: int) -> None:
    """Kill writers at random times. Rows and position always belong to the same batch."""
    rng, last = random.Random(seed), -2
    for _ in range(rounds):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store_writer", backend.opener()],
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
        found = backend.read()
        assert found is not None
        assert found[0] > last
        assert found[1] == rows_after(found[0])
        last = found[0]


def remove_folder(path: Path) -> None:
    """Remove the folder in one step, like unmounting a disk."""
    renamed = path.with_name(f"{path.name}.away")
    path.rename(renamed)
    shutil.rmtree(renamed)
