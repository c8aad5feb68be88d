"""Broker-wide configuration, under Kafka's names, in three layers.

    node       set at run time for this broker        (DescribeConfigs: dynamic broker config)
    cluster    set at run time for all brokers        (dynamic default broker config)
    static     given when it started                  (static broker config)

The highest layer that has a key decides; below all three lies the key's default. Most keys are the defaults
of a topic's keys: a topic that does not set ``retention.ms`` has this broker's ``log.retention.ms``, or
``log.retention.minutes``, or ``log.retention.hours``, in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple

from headrace.broker.config_key import ConfigKey, ConfigType, Synonym, at_least
from headrace.broker.limits import LIMIT_CONFIGS
from headrace.broker.settings import BrokerSettings
from headrace.broker.topic_configs import TOPIC_CONFIGS
from headrace.errors import ConfigError

__all__ = ["BROKER_CONFIGS", "BrokerConfigs", "Scope", "Setting", "Source", "static_configs"]


class Source(IntEnum):
    """Where a value comes from, by the numbers that DescribeConfigs sends."""

    TOPIC = 1
    NODE = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5


class Scope(Enum):
    """What a change of broker-wide configuration is for."""

    NODE = "node"
    CLUSTER = "cluster"


class Setting(NamedTuple):
    """A value under one of the names it can have."""

    name: str
    value: str | None
    source: Source


def _fallback_key(key: ConfigKey, synonym: Synonym, *, is_last: bool) -> ConfigKey:
    """The broker's key behind a topic's key. Where there are several, the coarsest has the default and only
    the finest may change.
    """
    default = key.default
    if default is not None:
        default = (
            (str(int(default) // synonym.factor) if synonym.factor > 1 else default) if is_last else None
        )
    return replace(
        key,
        name=synonym.name,
        type=ConfigType.INT if synonym.factor > 1 else key.type,
        default=default,
        doc=f"The default of topics for {key.name}"
        + (f", in units of {synonym.factor} ms" if synonym.factor > 1 else "")
        + f". {key.doc}",
        synonyms=(),
        dynamic=synonym == key.synonyms[0],
    )


_OWN = (
    ConfigKey(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "Where clients are told to find this broker.",
        dynamic=False,
    ),
    ConfigKey(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether a topic that a client asks for and that is not there is created.",
    ),
    ConfigKey("broker.id", ConfigType.INT, None, "The number of this broker.", dynamic=False),
    ConfigKey(
        "default.replication.factor",
        ConfigType.INT,
        "1",
        "How many copies of a partition there are: one, on a single node.",
        dynamic=False,
    ),
    ConfigKey(
        "delete.topic.enable", ConfigType.BOOLEAN, "true", "Whether topics can be deleted.", dynamic=False
    ),
    ConfigKey(
        "headrace.partitions.max",
        ConfigType.INT,
        "10000",
        "How many partitions all topics together may have: each holds open files and some memory.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey(
        "headrace.topic.partitions.max",
        ConfigType.INT,
        "1000",
        "How many partitions one topic may have.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey(
        "headrace.topics.max",
        ConfigType.INT,
        "10000",
        "How many topics there may be.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey(
        "headrace.volatile.max.bytes",
        ConfigType.INT,
        str(1 << 30),
        "How much memory all volatile topics together may take, by their retention.bytes times their partitions.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey("listeners", ConfigType.LIST, None, "Where this broker listens.", dynamic=False),
    ConfigKey("log.dirs", ConfigType.LIST, None, "The data directory.", dynamic=False),
    ConfigKey("node.id", ConfigType.INT, None, "The number of this broker.", dynamic=False),
    ConfigKey(
        "num.partitions",
        ConfigType.INT,
        "1",
        "How many partitions a topic has that is created without saying so.",
        at_least(1),
        dynamic=False,
    ),
)

_FALLBACKS = tuple(
    _fallback_key(key, synonym, is_last=synonym == key.synonyms[-1])
    for key in TOPIC_CONFIGS.values()
    for synonym in key.synonyms
)

BROKER_CONFIGS: Mapping[str, ConfigKey] = {
    key.name: key for key in sorted((*_OWN, *LIMIT_CONFIGS, *_FALLBACKS), key=lambda key: key.name)
}

# From the finest broker-wide key of a topic's key to all of them, finest first.
_COARSER = {
    key.synonyms[0].name: tuple(synonym.name for synonym in key.synonyms)
    for key in TOPIC_CONFIGS.values()
    if key.synonyms
}

_OF_SETTINGS = frozenset(key.name for key in _OWN)


def static_configs(settings: BrokerSettings) -> dict[str, str]:
    """The static layer: what the settings say, under Kafka's names."""
    host, port = settings.advertised
    static = {
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "broker.id": str(settings.node_id),
        "listeners": f"PLAINTEXT://{settings.listen_host}:{settings.listen_port}",
        "log.dirs": str(settings.data_dir.absolute()),
        "node.id": str(settings.node_id),
    }
    if not settings.auto_create_topics:
        static["auto.create.topics.enable"] = "false"
    for name, number in (
        ("headrace.partitions.max", settings.partitions_max),
        ("headrace.topic.partitions.max", settings.partitions_per_topic_max),
        ("headrace.topics.max", settings.topics_max),
        ("headrace.volatile.max.bytes", settings.volatile_bytes_max),
    ):
        if str(number) != BROKER_CONFIGS[name].default:
            static[name] = str(number)
    if settings.num_partitions != 1:
        static["num.partitions"] = str(settings.num_partitions)
    for name, value in settings.configs.items():
        key = BROKER_CONFIGS.get(name)
        if key is None or name in _OF_SETTINGS:
            raise ConfigError(
                f"there is no broker-wide configuration {name!r} to set",
                hint="limits can be set, such as max.connections, and defaults of topics, such as log.retention.ms",
            )
        static[name] = key.normal(value)
    return static


@dataclass(frozen=True, slots=True)
class BrokerConfigs:
    """The three layers at one moment. Values are in their normal spelling."""

    static: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, str] = field(default_factory=dict)
    node: Mapping[str, str] = field(default_factory=dict)

    def layer(self, scope: Scope) -> Mapping[str, str]:
        return self.node if scope is Scope.NODE else self.cluster

    def with_layer(self, scope: Scope, configs: Mapping[str, str]) -> BrokerConfigs:
        return replace(self, node=configs) if scope is Scope.NODE else replace(self, cluster=configs)

    def value(self, name: str) -> str | None:
        """What is in force for a broker-wide key."""
        for layer in (self.node, self.cluster, self.static):
            if name in layer:
                return layer[name]
        return BROKER_CONFIGS[name].default

    def fallback(self, key: ConfigKey) -> str | None:
        """What a topic's key is where the topic does not say."""
        for synonym in key.synonyms:
            value = self.value(synonym.name)
            if value is None:
                continue
            if synonym.factor == 1:
                return value
            # Minus one means "no limit" in any unit.
            return value if int(value) < 0 else str(int(value) * synonym.factor)
        return key.default

    def settings_of(self, name: str) -> list[Setting]:
        """Every value there is for a broker-wide key and the coarser keys behind it, the deciding one first.

        Empty where the key itself has no value, as in Kafka, even if a coarser one decides.
        """
        found = list(self._found(_COARSER.get(name, (name,))))
        while found and found[0].name != name:
            found.pop(0)
        return found

    def _found(self, names: tuple[str, ...]) -> Iterator[Setting]:
        for layer, source in (
            (self.node, Source.NODE),
            (self.cluster, Source.CLUSTER),
            (self.static, Source.STATIC),
        ):
            for name in names:
                if name in layer:
                    yield Setting(name, layer[name], source)
        for name in names:
            default = BROKER_CONFIGS[name].default
            if default is not None:
                yield Setting(name, default, Source.DEFAULT)

    @property
    def auto_create_topics(self) -> bool:
        return self.value("auto.create.topics.enable") == "true"
