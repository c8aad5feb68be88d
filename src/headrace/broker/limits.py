"""The limits on the resources that clients can use. Each limit has a name for ``--set`` and a default.

A limit that Kafka also has keeps Kafka's name. The names of all other limits begin with ``headrace.``. The broker reads
the limits once, at start. DescribeConfigs returns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.broker.topics.config_key import ConfigKey, ConfigType, at_least, between
from headrace.records import RecordLimits
from headrace.wire.api import Api

__all__ = ["LIMIT_CONFIGS", "BrokerLimits", "limits_of", "text_bytes"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits. Each name contains the unit. The keys below document the limits."""

    produce_frame_bytes_max: int = 100 * MIB
    frame_bytes_max: int = 4 * MIB
    request_elements_max: int = 12_000
    fetch_bytes_max: int = 16 * MIB
    fetch_sessions_bytes_max: int = 32 * MIB
    waiting_fetches_bytes_max: int = 48 * MIB
    connections_max: int = 10_000
    connections_per_address_max: int = 7_500
    idle_ms_max: int = 600_000
    slow_ms_max: int = 30_000
    slow_bytes_per_s_min: int = 32 * 1024
    in_flight_max: int = 64
    backlog_bytes_max: int = 1 * MIB
    unsent_bytes_max: int = 1 * MIB
    response_bytes_max: int = 8 * MIB
    all_requests_bytes_max: int = 512 * MIB
    all_responses_bytes_max: int = 256 * MIB
    records: RecordLimits = field(
        default_factory=lambda: RecordLimits(unpacked_bytes_max=128 * MIB, records_max=1_000_000)
    )

    elements_max: Mapping[Api, int] = field(init=False, compare=False, repr=False)
    """Maximum array elements of one request, by API. It is lower for APIs whose elements cost more."""

    def __post_init__(self) -> None:
        limits = {api: max(1, self.request_elements_max // _ELEMENT_COSTS.get(api, 1)) for api in Api}
        object.__setattr__(self, "elements_max", limits)


# Most elements cost one lookup. A batch costs more, because it is validated and written; a topic because of its files.
_ELEMENT_COSTS = {
    Api.PRODUCE: 3,
    Api.CREATE_TOPICS: 6,
    Api.DELETE_TOPICS: 6,
    Api.CREATE_PARTITIONS: 6,
    Api.DELETE_RECORDS: 12,
    Api.DESCRIBE_CONFIGS: 2,
    Api.ALTER_CONFIGS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 2,
}

_DEFAULT = BrokerLimits()


def _key(
    name: str, default: int, doc: str, value_min: int = 1, kind: ConfigType = ConfigType.INT
) -> ConfigKey:
    check = between(value_min, 2**31 - 1) if kind is ConfigType.INT else at_least(value_min)
    return ConfigKey(name, kind, str(default), doc, check, dynamic=False)


# The keys with the fields that they set, in the order in which the broker applies them to a request.
_FIELDS: tuple[tuple[ConfigKey, str], ...] = (
    (
        _key(
            "max.connections",
            _DEFAULT.connections_max,
            "Maximum number of open connections. The broker closes further connections at once.",
        ),
        "connections_max",
    ),
    (
        _key(
            "max.connections.per.ip",
            _DEFAULT.connections_per_address_max,
            "Maximum number of open connections per IP address. The broker closes further connections at once.",
        ),
        "connections_per_address_max",
    ),
    (
        _key(
            "connections.max.idle.ms",
            _DEFAULT.idle_ms_max,
            "Milliseconds after which the broker closes an idle connection. A connection is idle if the client sends"
            " nothing and waits for no response. A fetch waits at most half as long.",
            kind=ConfigType.LONG,
        ),
        "idle_ms_max",
    ),
    (
        _key(
            "headrace.slow.client.timeout.ms",
            _DEFAULT.slow_ms_max,
            "Milliseconds within which a client must send the rest of a request or read its responses. After that, the"
            " broker closes the connection, unless the client reaches headrace.slow.client.bytes.per.second.",
            kind=ConfigType.LONG,
        ),
        "slow_ms_max",
    ),
    (
        _key(
            "headrace.slow.client.bytes.per.second",
            _DEFAULT.slow_bytes_per_s_min,
            "Minimum bytes per second for a client that takes longer than headrace.slow.client.timeout.ms to send a"
            " request or read a response.",
        ),
        "slow_bytes_per_s_min",
    ),
    (
        _key(
            "socket.request.max.bytes",
            _DEFAULT.produce_frame_bytes_max,
            "Maximum size of a Produce request in bytes. The broker closes the connection without receiving a larger"
            " request.",
            value_min=1024,
        ),
        "produce_frame_bytes_max",
    ),
    (
        _key(
            "headrace.request.max.bytes",
            _DEFAULT.frame_bytes_max,
            "Maximum size of any other request in bytes. The broker closes the connection without receiving a larger"
            " request.",
            value_min=1024,
        ),
        "frame_bytes_max",
    ),
    (
        _key(
            "headrace.request.elements.max",
            _DEFAULT.request_elements_max,
            "Maximum array elements of one request. Produce may have a third of this number; CreateTopics, DeleteTopics"
            " and CreatePartitions a sixth; DeleteRecords a twelfth; the configuration APIs half. The broker closes the"
            " connection if a request has more.",
        ),
        "request_elements_max",
    ),
    (
        _key(
            "headrace.connection.requests.max",
            _DEFAULT.in_flight_max,
            "Maximum requests in progress per connection. The same number of further requests can wait in memory."
            " Above it, the broker reads no more from the socket.",
        ),
        "in_flight_max",
    ),
    (
        _key(
            "headrace.connection.request.bytes",
            _DEFAULT.backlog_bytes_max,
            "Maximum bytes of requests that wait in memory per connection, in addition to one request. Above it, the"
            " broker reads no more from the socket.",
        ),
        "backlog_bytes_max",
    ),
    (
        _key(
            "headrace.connection.response.bytes",
            _DEFAULT.unsent_bytes_max,
            "Maximum bytes of responses that a client has not read, in addition to one response. Above it, the broker"
            " stops handling the connection's requests until the client reads.",
        ),
        "unsent_bytes_max",
    ),
    (
        _key(
            "headrace.response.max.bytes",
            _DEFAULT.response_bytes_max,
            "Maximum memory of one response while it is built, in bytes, in addition to its first item. Items that"
            " exceed it get an error code: 14 for groups and transactions, 6 for partitions (clients retry both), 44"
            " for configurations.",
            value_min=1024,
        ),
        "response_bytes_max",
    ),
    (
        _key(
            "queued.max.request.bytes",
            _DEFAULT.all_requests_bytes_max,
            "Maximum bytes of requests of all connections together that are incomplete or not handled yet. Above it,"
            " the broker closes the connection that has held such bytes for longest.",
            value_min=MIB,
            kind=ConfigType.LONG,
        ),
        "all_requests_bytes_max",
    ),
    (
        _key(
            "headrace.queued.max.response.bytes",
            _DEFAULT.all_responses_bytes_max,
            "Maximum bytes of responses of all connections together that clients have not read. Fetch responses become"
            " smaller near the limit. Above it, the broker closes the connection that has had unread responses for"
            " longest.",
            value_min=MIB,
            kind=ConfigType.LONG,
        ),
        "all_responses_bytes_max",
    ),
    (
        _key(
            "fetch.max.bytes",
            _DEFAULT.fetch_bytes_max,
            "Maximum size of a Fetch response in bytes, even if the client allows more. If the first batch is larger,"
            " the broker sends it whole.",
            value_min=1024,
        ),
        "fetch_bytes_max",
    ),
    (
        _key(
            "headrace.fetch.sessions.max.bytes",
            _DEFAULT.fetch_sessions_bytes_max,
            "Maximum memory of all fetch sessions in bytes. Each partition uses about 400 bytes and its topic's name."
            " Above it, consumers fetch without a session, and send all their partitions in each request.",
            value_min=1024,
        ),
        "fetch_sessions_bytes_max",
    ),
    (
        _key(
            "headrace.fetch.waiting.max.bytes",
            _DEFAULT.waiting_fetches_bytes_max,
            "Maximum memory of all fetches that wait for new records, in bytes. Each fetch uses 2048 bytes, and each of"
            " its partitions 512. Above it, a fetch without new records waits at most half a second.",
            value_min=1024,
        ),
        "waiting_fetches_bytes_max",
    ),
    (
        _key(
            "headrace.batch.unpacked.max.bytes",
            _DEFAULT.records.unpacked_bytes_max,
            "Maximum size of one batch after decompression, in bytes.",
            value_min=1024,
        ),
        "records.unpacked_bytes_max",
    ),
    (
        _key(
            "headrace.batch.records.max",
            _DEFAULT.records.records_max,
            "Maximum number of records in one batch.",
        ),
        "records.records_max",
    ),
    (
        _key(
            "headrace.record.headers.max",
            _DEFAULT.records.headers_max,
            "Maximum number of headers of one record.",
            value_min=0,
        ),
        "records.headers_max",
    ),
)

LIMIT_CONFIGS: tuple[ConfigKey, ...] = tuple(key for key, _ in _FIELDS)


def limits_of(configs: Mapping[str, str]) -> BrokerLimits:
    """Return the configured limits, with defaults for the others. Raises ``ConfigError`` for an invalid value."""
    broker_limits: dict[str, int] = {}
    record_limits: dict[str, int] = {}
    for key, name in _FIELDS:
        if key.name not in configs:
            continue
        value = int(key.normal(configs[key.name]))
        if name.startswith("records."):
            record_limits[name.removeprefix("records.")] = value
        else:
            broker_limits[name] = value
    default_records = RecordLimits(
        unpacked_bytes_max=_DEFAULT.records.unpacked_bytes_max, records_max=_DEFAULT.records.records_max
    )
    records = RecordLimits(
        **{name: record_limits.get(name, getattr(default_records, name)) for name in RecordLimits.__slots__}
    )
    return BrokerLimits(**broker_limits, records=records)


def text_bytes(text: str | None) -> int:
    """Return the maximum memory of a string. It is never less than the string's size in a message.

    If a string has a character outside ASCII, Python can use four bytes for every character.
    """
    return 0 if text is None else len(text) if text.isascii() else 4 * len(text)
