"""A topic exists as soon as one broker of a cluster knows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.handlers import HANDLERS
from headrace.broker.net.request import Request
from headrace.broker.net.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.client.cluster import Cluster
from headrace.client.errors import MissingTopic
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

TOPIC = "headrace.followers.shop"


class LaggingBroker:
    """A broker that reports a second one, and does not know the topic in its next few responses."""

    def __init__(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = Cluster(f"127.0.0.1:{port}", timeout_s=20.0)
        self.is_lagging: Callable[[Api], bool] = lambda api: False
        self.requests: list[Api] = []
        self.nodes = 2
        for api in (Api.METADATA, Api.DESCRIBE_CONFIGS, Api.LIST_OFFSETS):
            monkeypatch.setitem(HANDLERS, api, self._wrap(HANDLERS[api]))

    def omit_topic(self, api: Api, answers: int) -> None:
        """Omit the topic from the next responses of this API."""
        left = [answers]

        def is_lagging(requested: Api) -> bool:
            left[0] -= requested is api
            return requested is api and left[0] >= 0

        self.is_lagging = is_lagging

    def _wrap(self, handle: Any) -> Any:
        async def handler(broker: Broker, request: Request) -> Any:
            response = await handle(broker, request)
            if request.api is Api.METADATA and self.nodes > 1:
                host, port = broker.settings.advertised
                other = m.MetadataResponse.MetadataResponseBroker(node_id=2, host=host, port=port)
                response.brokers = [*response.brokers, other]
            if _requests_topic(request) and self.is_lagging(request.api):
                self.requests.append(request.api)
                _remove_topic(response, request.api)
            return response

        return handler


def _requests_topic(request: Request) -> bool:
    message = request.message
    if request.api is Api.DESCRIBE_CONFIGS:
        return any(resource.resource_name == TOPIC for resource in message.resources)
    topics = getattr(message, "topics", None)
    return any(resource.name == TOPIC for resource in topics or ())


def _remove_topic(response: Any, api: Api) -> None:
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
async def lagging_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LaggingBroker]:
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0, durability="os"))
    server = Server(broker)
    await server.listen("127.0.0.1", 0)
    broker.set_port(server.port)
    await broker.start()
    yield LaggingBroker(server.port, monkeypatch)
    await server.close()
    await broker.stop()


async def test_partitions_are_added_to_a_topic_that_another_broker_does_not_know_yet(
    lagging_broker: LaggingBroker,
) -> None:
    cluster = lagging_broker.cluster
    await asyncio.to_thread(cluster.ensure_topic, TOPIC, 1)
    lagging_broker.omit_topic(Api.METADATA, 2)
    await asyncio.to_thread(cluster.ensure_partitions, TOPIC, 3)
    assert lagging_broker.requests == [Api.METADATA] * 2
    topic_info = await asyncio.to_thread(cluster.topic, TOPIC)
    assert topic_info is not None
    assert topic_info.partitions == 3


@pytest.mark.parametrize("api", [Api.DESCRIBE_CONFIGS, Api.LIST_OFFSETS])
async def test_a_request_is_retried_while_another_broker_does_not_know_the_topic_yet(
    lagging_broker: LaggingBroker, api: Api
) -> None:
    cluster = lagging_broker.cluster
    await asyncio.to_thread(cluster.ensure_topic, TOPIC, 1)
    lagging_broker.omit_topic(api, 2)
    if api is Api.LIST_OFFSETS:
        assert await asyncio.to_thread(cluster.ends, TOPIC) == {0: 0}
    else:
        assert (await asyncio.to_thread(cluster.configs, TOPIC))["cleanup.policy"] == "delete"
    assert lagging_broker.requests == [api] * 2


async def test_a_topic_that_this_process_did_not_create_is_reported_missing_without_retries(
    lagging_broker: LaggingBroker,
) -> None:
    await asyncio.to_thread(Cluster(lagging_broker.cluster.bootstrap).ensure_topic, TOPIC, 1)
    lagging_broker.omit_topic(Api.METADATA, 1)
    with pytest.raises(MissingTopic):
        await asyncio.to_thread(lagging_broker.cluster.expect_topic, TOPIC)


async def test_a_topic_unknown_to_the_only_broker_is_reported_missing_without_retries(
    lagging_broker: LaggingBroker,
) -> None:
    lagging_broker.nodes = 1
    await asyncio.to_thread(lagging_broker.cluster.ensure_topic, TOPIC, 1)
    lagging_broker.omit_topic(Api.METADATA, 1)
    with pytest.raises(MissingTopic):
        await asyncio.to_thread(lagging_broker.cluster.expect_topic, TOPIC)
