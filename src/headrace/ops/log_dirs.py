"""How large partitions are, and how much room there is: DescribeLogDirs, which librdkafka has no call for.

Asked with our own wire code, over a plain connection; where the cluster wants more than that, or does not answer, sizes
are not known, and nothing else depends on them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException

from headrace.client.cluster import Cluster
from headrace.wire import Api, WireError, decode_response, encode_request
from headrace.wire import messages as m

__all__ = ["Sizes", "sizes_of"]

Partition = tuple[str, int]
"""Topic and number."""

_VERSION = 4
_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """``free_bytes`` is the least that any disk with these partitions has, if it was told."""

    bytes: Mapping[Partition, int]
    free_bytes: int | None


def sizes_of(cluster: Cluster, partitions: Iterable[Partition]) -> Sizes | None:
    if cluster.properties.get("security.protocol", "plaintext").lower() != "plaintext":
        return None
    request = m.DescribeLogDirsRequest
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    message = request(
        topics=[
            request.DescribableLogDirTopic(topic=name, partitions=rows) for name, rows in by_topic.items()
        ]
    )
    found: dict[Partition, int] = {}
    free: list[int] = []
    try:
        nodes = cluster.answer(cluster.admin().describe_cluster(request_timeout=cluster.timeout_s)).nodes
    except KafkaException:
        return None
    for node in nodes:
        with contextlib.suppress(OSError, WireError, struct.error):
            _ask(str(node.host), node.port, message, found, free)
    return Sizes(found, min(free, default=None)) if found else None


def _ask(host: str, port: int, message: object, found: dict[Partition, int], free: list[int]) -> None:
    asked = encode_request(Api.DESCRIBE_LOG_DIRS, _VERSION, 1, "headrace", message)  # type: ignore[arg-type]
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        connection.sendall(asked)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            if not 0 < size <= _ANSWER_BYTES_MAX:
                return
            _, response = decode_response(Api.DESCRIBE_LOG_DIRS, _VERSION, stream.read(size))
    for directory in response.results:
        if directory.topics and directory.usable_bytes >= 0:
            free.append(directory.usable_bytes)
        for topic in directory.topics:
            for partition in topic.partitions:
                place = (topic.name, partition.partition_index)
                # Copies on other brokers may lag: the largest is the one that leads.
                found[place] = max(found.get(place, 0), partition.partition_size)
