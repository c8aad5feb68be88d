"""A topic that one broker of a cluster knows and another does not know yet: it exists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.handlers import HANDLERS
from headrace.broker.request import Request
from headrace.broker.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.client.cluster import Cluster
from headrace.client.errors import TopicMissing
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

TOPIC = "headrace.followers.shop"


class Lagging:
    """A broker whose answers say that there is a second one, and of which the next few do not know the topic."""

    def __init__(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = Cluster(f"127.0.0.1:{port}", timeout_s=20.0)
        self.is_lagging: Callable[[Api], bool] = lambda api: False
        self.asked: list[Api] = []
        self.nodes = 2
        for api in (Api.METADATA, Api.DESCRIBE_CONFIGS, Api.LIST_OFFSETS):
            monkeypatch.setitem(HANDLERS, api, self._with(HANDLERS[api]))

    def forget(self, api: Api, answers: int) -> None:
        """The next answers of this API to a question about the topic do not know it."""
        left = [answers]

        def is_lagging(asked: Api) -> bool:
            left[0] -= asked is api
            return asked is api and left[0] >= 0

        self.is_lagging = is_lagging

    def _with(self, handle: Any) -> Any:
        async def handler(broker: Broker, request: Request) -> Any:
            response = await handle(broker, request)
            if request.api is Api.METADATA and self.nodes > 1:
                host, port = broker.settings.advertised
                other = m.MetadataResponse.MetadataResponseBroker(node_id=2, host=host, port=port)
                response.brokers = [*response.brokers, other]
            if _names_topic(request) and self.is_lagging(request.api):
                self.asked.append(request.api)
                _leave_out(response, request.api)
            return response

        return handler


def _names_topic(request: Request) -> bool:
    asked = request.message
    if request.api is Api.DESCRIBE_CONFIGS:
        return any(one.resource_name == TOPIC for one in asked.resources)
    topics = getattr(asked, "topics", None)
    return any(one.name == TOPIC for one in topics or ())


def _leave_out(response: Any, api: Api) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if api is Api.METADATA:
        response.topics = [m.MetadataResponse.MetadataResponseTopic(error_code=unknown, name=TOPIC)]
    elif api is Api.DESCRIBE_CONFIGS:
        for result in response.results:
            result.error_code, result.configs = unknown, []
    else:
        for topic in response.topics:
            for partition in topic.partitions:
                partition.error_code = unknown


@pytest.fixture
async def lagging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lagging]:
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0, durability="os"))
    server = Server(broker)
    await server.listen("127.0.0.1", 0)
    broker.listens_on(server.port)
    await broker.start()
    yield Lagging(server.port, monkeypatch)
    await server.close()
    await broker.stop()


async def test_partitions_are_added_to_a_topic_that_another_broker_does_not_know_yet(
    lagging: Lagging,
) -> None:
    cluster = lagging.cluster
    await asyncio.to_thread(cluster.ensure_topic, TOPIC, 1)
    lagging.forget(Api.METADATA, 2)
    await asyncio.to_thread(cluster.ensure_partitions, TOPIC, 3)
    assert lagging.asked == [Api.METADATA] * 2
    found = await asyncio.to_thread(cluster.topic, TOPIC)
    assert found is not None
    assert found.partitions == 3


@pytest.mark.parametrize("api", [Api.DESCRIBE_CONFIGS, Api.LIST_OFFSETS])
async def test_a_topic_that_another_broker_does_not_know_yet_is_asked_about_again(
    lagging: Lagging, api: Api
) -> None:
    cluster = lagging.cluster
    await asyncio.to_thread(cluster.ensure_topic, TOPIC, 1)
    lagging.forget(api, 2)
    if api is Api.LIST_OFFSETS:
        assert await asyncio.to_thread(cluster.ends, TOPIC) == {0: 0}
    else:
        assert (await asyncio.to_thread(cluster.configs, TOPIC))["cleanup.policy"] == "delete"
    assert lagging.asked == [api] * 2


async def test_a_topic_that_this_process_did_not_ensure_is_missing_at_once(lagging: Lagging) -> None:
    await asyncio.to_thread(Cluster(lagging.cluster.bootstrap).ensure_topic, TOPIC, 1)
    lagging.forget(Api.METADATA, 1)
    with pytest.raises(TopicMissing):
        await asyncio.to_thread(lagging.cluster.expect_topic, TOPIC)


async def test_a_topic_that_the_only_broker_does_not_know_is_missing_at_once(lagging: Lagging) -> None:
    lagging.nodes = 1
    await asyncio.to_thread(lagging.cluster.ensure_topic, TOPIC, 1)
    lagging.forget(Api.METADATA, 1)
    with pytest.raises(TopicMissing):
        await asyncio.to_thread(lagging.cluster.expect_topic, TOPIC)
