"""What clients may ask of a broker at the most: every limit has a name that ``--set`` takes, and a default that works.

The names are Kafka's where Kafka has the limit, and begin with ``headrace.`` where it has none. They are read
once, when the broker starts; DescribeConfigs shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.broker.config_key import ConfigKey, ConfigType, at_least, between
from headrace.records import RecordLimits

__all__ = ["LIMIT_CONFIGS", "BrokerLimits", "limits_of"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Units are in the names. What each is for is said once, with its key below."""

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
    all_answers_bytes_max: int = 256 * MIB
    records: RecordLimits = field(
        default_factory=lambda: RecordLimits(unpacked_bytes_max=128 * MIB, records_max=1_000_000)
    )


_DEFAULT = BrokerLimits()


def _key(name: str, default: int, doc: str, least: int = 1, kind: ConfigType = ConfigType.INT) -> ConfigKey:
    check = between(least, 2**31 - 1) if kind is ConfigType.INT else at_least(least)
    return ConfigKey(name, kind, str(default), doc, check, dynamic=False)


# Keys and the fields that they set, in the order in which a request meets them.
_FIELDS: tuple[tuple[ConfigKey, str], ...] = (
    (
        _key(
            "max.connections",
            _DEFAULT.connections_max,
            "How many connections may be open. One that is more is closed at once.",
        ),
        "connections_max",
    ),
    (
        _key(
            "max.connections.per.ip",
            _DEFAULT.connections_per_address_max,
            "How many connections one address may have open. One that is more is closed at once.",
        ),
        "connections_per_address_max",
    ),
    (
        _key(
            "connections.max.idle.ms",
            _DEFAULT.idle_ms_max,
            "After how many milliseconds without a byte a connection that is owed nothing is closed. A fetch"
            " waits for half as long at the most.",
            kind=ConfigType.LONG,
        ),
        "idle_ms_max",
    ),
    (
        _key(
            "headrace.slow.client.timeout.ms",
            _DEFAULT.slow_ms_max,
            "How many milliseconds a client has to send the rest of a request that it has begun, or to take its"
            " answers, unless it keeps up headrace.slow.client.bytes.per.second. Past that the connection is closed.",
            kind=ConfigType.LONG,
        ),
        "slow_ms_max",
    ),
    (
        _key(
            "headrace.slow.client.bytes.per.second",
            _DEFAULT.slow_bytes_per_s_min,
            "How many bytes a second a client must manage that takes longer than headrace.slow.client.timeout.ms over"
            " a request or an answer.",
        ),
        "slow_bytes_per_s_min",
    ),
    (
        _key(
            "socket.request.max.bytes",
            _DEFAULT.produce_frame_bytes_max,
            "The largest Produce request, in bytes. A larger one is not received: the connection is closed.",
            least=1024,
        ),
        "produce_frame_bytes_max",
    ),
    (
        _key(
            "headrace.request.max.bytes",
            _DEFAULT.frame_bytes_max,
            "The largest request that is not Produce, in bytes. A larger one is not received: the connection is"
            " closed.",
            least=1024,
        ),
        "frame_bytes_max",
    ),
    (
        _key(
            "headrace.request.elements.max",
            _DEFAULT.request_elements_max,
            "How many array elements one request may hold in all: a third of it in Produce, a sixth where topics are"
            " made, grown or deleted, a twelfth in DeleteRecords. One with more is not handled: the connection is"
            " closed.",
        ),
        "request_elements_max",
    ),
    (
        _key(
            "headrace.connection.requests.max",
            _DEFAULT.in_flight_max,
            "How many requests of one connection may wait for their answers, and as many to be handled. The rest is"
            " left in the socket.",
        ),
        "in_flight_max",
    ),
    (
        _key(
            "headrace.connection.request.bytes",
            _DEFAULT.backlog_bytes_max,
            "How many bytes of requests one connection may send ahead of what is being handled, one request aside."
            " The rest is left in the socket.",
        ),
        "backlog_bytes_max",
    ),
    (
        _key(
            "headrace.connection.response.bytes",
            _DEFAULT.unsent_bytes_max,
            "How many bytes of answers one connection may leave untaken, one answer aside, before no more of its"
            " requests are handled.",
        ),
        "unsent_bytes_max",
    ),
    (
        _key(
            "headrace.response.max.bytes",
            _DEFAULT.response_bytes_max,
            "Memory that one response may take while it is built, in bytes, its first item aside. The items that do not"
            " fit get an error that clients retry: 14 for groups and transactions, 6 for partitions, 44 for"
            " configurations.",
            least=1024,
        ),
        "response_bytes_max",
    ),
    (
        _key(
            "queued.max.request.bytes",
            _DEFAULT.all_requests_bytes_max,
            "How many bytes of requests that are not whole, or not handled yet, all connections may have together."
            " Past that the one that has taken longest to send is closed.",
            least=MIB,
            kind=ConfigType.LONG,
        ),
        "all_requests_bytes_max",
    ),
    (
        _key(
            "headrace.queued.max.response.bytes",
            _DEFAULT.all_answers_bytes_max,
            "How many bytes of answers that their clients have not taken all connections may have together. Answers"
            " to fetches get smaller as it fills; past it the client that has kept its answer waiting longest is"
            " closed.",
            least=MIB,
            kind=ConfigType.LONG,
        ),
        "all_answers_bytes_max",
    ),
    (
        _key(
            "fetch.max.bytes",
            _DEFAULT.fetch_bytes_max,
            "The largest answer to a fetch, however much a client asks for, in bytes. A first batch that is larger"
            " comes whole.",
            least=1024,
        ),
        "fetch_bytes_max",
    ),
    (
        _key(
            "headrace.fetch.sessions.max.bytes",
            _DEFAULT.fetch_sessions_bytes_max,
            "Memory of all fetch sessions, in bytes: about 400 and the topic's name for each partition. Past that"
            " consumers fetch without a session, and name all their partitions each time.",
            least=1024,
        ),
        "fetch_sessions_bytes_max",
    ),
    (
        _key(
            "headrace.fetch.waiting.max.bytes",
            _DEFAULT.waiting_fetches_bytes_max,
            "Memory of all fetches that wait for new records, in bytes: 512 for each partition. Past that a fetch"
            " without new records is answered after half a second at the latest.",
            least=1024,
        ),
        "waiting_fetches_bytes_max",
    ),
    (
        _key(
            "headrace.batch.unpacked.max.bytes",
            _DEFAULT.records.unpacked_bytes_max,
            "What one batch may unpack to, in bytes.",
            least=1024,
        ),
        "records.unpacked_bytes_max",
    ),
    (
        _key(
            "headrace.batch.records.max",
            _DEFAULT.records.records_max,
            "How many records one batch may hold.",
        ),
        "records.records_max",
    ),
    (
        _key(
            "headrace.record.headers.max",
            _DEFAULT.records.headers_max,
            "How many headers one record may have.",
            least=0,
        ),
        "records.headers_max",
    ),
)

LIMIT_CONFIGS: tuple[ConfigKey, ...] = tuple(key for key, _ in _FIELDS)


def limits_of(configs: Mapping[str, str]) -> BrokerLimits:
    """The limits that settings name; the defaults for the rest. ``ConfigError`` where a value does not fit."""
    own: dict[str, int] = {}
    records: dict[str, int] = {}
    for key, name in _FIELDS:
        if key.name not in configs:
            continue
        value = int(key.normal(configs[key.name]))
        if name.startswith("records."):
            records[name.removeprefix("records.")] = value
        else:
            own[name] = value
    base = RecordLimits(
        unpacked_bytes_max=_DEFAULT.records.unpacked_bytes_max, records_max=_DEFAULT.records.records_max
    )
    settled = RecordLimits(
        **{name: records.get(name, getattr(base, name)) for name in RecordLimits.__slots__}
    )
    return BrokerLimits(**own, records=settled)
