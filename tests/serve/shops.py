"""Several shops of one app behind one server: each test has one to itself, and none waits for a server of its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.model.topic import Topic
from headrace.model.view import View
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import add_shop
from tests.views.seeing import following

__all__ = ["Shop", "Shops", "several"]


@dataclass(frozen=True)
class Shop:
    topics: list[Topic]
    """Products and orders."""
    views: list[View]


class Shops:
    def __init__(self, app: App, http: Http, cluster: Cluster, home: Path, partitions: int) -> None:
        self.app = app
        self.http = http
        self._cluster = cluster
        self._home = home
        self._partitions = partitions
        self._numbers = itertools.count(0, 2)

    def take(self) -> Shop:
        """One that nobody had."""
        at = next(self._numbers)
        taken = Shop(self.app.topics[at : at + 2], self.app.views[at : at + 2])
        for topic in taken.topics:
            ensure_declared(self._cluster, topic, topic.name, self._partitions)
        return taken

    @contextlib.contextmanager
    def followed(self, shop: Shop) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for view in shop.views:
                stack.enter_context(following(self._cluster, view, [], self._home))
            yield


@contextlib.contextmanager
def several(name: str, count: int, cluster: Cluster, home: Path, partitions: int) -> Iterator[Shops]:
    app = App("shop")
    for number in range(count):
        add_shop(app, f"{name}-shop-{number}")
    with served(app, cluster, home) as http:
        yield Shops(app, http, cluster, home, partitions)
