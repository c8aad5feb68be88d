"""Parts that an earlier release started keep their topics, whose names do not contain the app's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.earlier_names import keep_earlier_names
from headrace.model.progress import Generation, encode

Fresh = Callable[[str], str]


@dataclass(frozen=True)
class Order:
    order_id: str


class Earlier:
    """An app with a flow and a view, and topics as an earlier release named them."""

    def __init__(self, cluster: Cluster, mark: str) -> None:
        self.cluster, self.mark = cluster, mark
        self.app = App(f"shop-{mark}")
        self.orders = self.app.topic(f"orders-{mark}", Order, key="order_id")
        copies = self.app.topic(f"copies-{mark}", key="order_id")
        self.flow = self.app.flow(reads=[self.orders], writes=copies, name=f"copy-{mark}")(
            lambda orders: orders
        )
        self.view = self.app.view(f"orders-view-{mark}", self.orders)

    def progress(self, app: str) -> None:
        record = Generation(
            app=app, flow=self.flow.name, generation=1, fingerprint="", inputs=[], output="", output_id="",
            output_starts={}, key=[], schema=[], checkpoint="", started_ms=0, reason="new",
        )  # fmt: skip
        key, value = encode(record)
        self._write(f"{self.flow.name}.progress", key, value)

    def letter(self, origin: str) -> None:
        self._write(f"{self.view.name}.dead", None, b"{}", [("__headrace.errors.topic", origin.encode())])

    def _write(
        self, topic: str, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]] | None = None
    ) -> None:
        self.cluster.ensure_topic(topic, 1)
        producer = self.cluster.producer({})
        producer.produce(topic, key=key, value=value, headers=[*(headers or [])])
        assert producer.flush(30) == 0

    def topics(self) -> tuple[str, str, str]:
        keep_earlier_names(self.cluster, self.app)
        return self.flow.progress_topic, self.flow.dead_topic, self.view.dead_topic

    @property
    def own(self) -> tuple[str, str, str]:
        app, flow = self.app.name, self.flow.name
        return f"{app}.{flow}.progress", f"{app}.{flow}.dead", f"{app}.{self.view.name}.dead"


@pytest.fixture
def earlier(cluster: Cluster, fresh: Fresh) -> Earlier:
    return Earlier(cluster, fresh("earlier"))


def test_new_parts_have_topics_with_the_name_of_the_app(earlier: Earlier) -> None:
    assert earlier.topics() == earlier.own


def test_parts_of_an_earlier_release_keep_their_topics(earlier: Earlier) -> None:
    earlier.progress(earlier.app.name)
    earlier.letter(earlier.orders.name)
    flow, view = earlier.flow.name, earlier.view.name
    assert earlier.topics() == (f"{flow}.progress", f"{flow}.dead", f"{view}.dead")


def test_topics_of_another_app_are_not_taken_over(earlier: Earlier) -> None:
    earlier.progress("another-app")
    earlier.letter("another-topic")
    assert earlier.topics() == earlier.own


def test_a_part_that_has_topics_with_the_name_of_its_app_uses_them(earlier: Earlier) -> None:
    earlier.progress(earlier.app.name)
    earlier.letter(earlier.orders.name)
    for topic in earlier.own:
        earlier.cluster.ensure_topic(topic, 1)
    assert earlier.topics() == earlier.own
