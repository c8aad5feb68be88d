"""Several shops in one served app: each test takes a shop of its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import add_shop
from faults.views.follower_thread import following
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.model.declarations import Topic, View

__all__ = ["Shop", "Shops", "served_shops"]


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
        self._indexes = itertools.count(0, 2)

    def take(self) -> Shop:
        """Return a shop that no test has used."""
        index = next(self._indexes)
        shop = Shop(self.app.topics[index : index + 2], self.app.views[index : index + 2])
        for topic in shop.topics:
            ensure_declared(self._cluster, topic, topic.name, self._partitions)
        return shop

    @contextlib.contextmanager
    def followed(self, shop: Shop) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for view in shop.views:
                stack.enter_context(following(self._cluster, view, [], self._home))
            yield


@contextlib.contextmanager
def served_shops(name: str, count: int, cluster: Cluster, home: Path, partitions: int) -> Iterator[Shops]:
    app = App("shop")
    for number in range(count):
        add_shop(app, f"{name}-shop-{number}")
    with served(app, cluster, home) as http:
        yield Shops(app, http, cluster, home, partitions)
