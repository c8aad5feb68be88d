"""The supported APIs of the Kafka protocol, and the versions of each."""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from headrace.wire.notation import Shapes, load

__all__ = ["Api", "advertised", "flexible_from", "versions"]


class Api(IntEnum):
    """The APIs. The value is the API key in the request header."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75

    # Every request looks up its API in several dictionaries, and the default hash of enums is slow.
    __hash__ = int.__hash__

    @property
    def title(self) -> str:
        """The API name in Kafka's spelling, for example ``ListOffsets``. Message names begin with it."""
        return _title(self)


@cache
def _title(api: Api) -> str:
    return api.name.title().replace("_", "")


@cache
def versions(api: Api) -> tuple[int, int]:
    """Return the first and the last supported version, excluding versions that Kafka may still change."""
    stable = _shapes(api).stable
    return stable.start, stable.stop - 1


def advertised(api: Api) -> tuple[int, int]:
    """Return the first and the last version for the ApiVersions response."""
    first, last = versions(api)
    if api is Api.PRODUCE:
        # If version 0 is missing, old versions of librdkafka (used by kcat, for example) assume that the broker does
        # not support compression, and silently send uncompressed records. They never use version 0: they use the newest
        # version that both sides support.
        first = 0
    return first, last


@cache
def flexible_from(api: Api) -> int:
    """Return the first version whose messages and headers may contain tagged fields."""
    return _shapes(api).messages[f"{api.title}Request"].flexible_from


@cache
def _shapes(api: Api) -> Shapes:
    return load(api.name.lower())
