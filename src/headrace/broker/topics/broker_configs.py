"""The broker's configuration, under Kafka's names, in three layers.

    node       set at run time for this broker        (in DescribeConfigs: dynamic broker config)
    cluster    set at run time for all brokers        (in DescribeConfigs: dynamic default broker config)
    static     set when the broker started            (in DescribeConfigs: static broker config)

The first layer in this order that has a key determines its value. If no layer has the key, its default applies. Most
broker keys set the default of a topic key. For example, a topic that does not set ``retention.ms`` uses the broker's
``log.retention.ms``, else ``log.retention.minutes``, else ``log.retention.hours``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple

from headrace.broker.limits import LIMIT_CONFIGS
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics.config_key import ConfigKey, ConfigType, Synonym, at_least
from headrace.broker.topics.topic_configs import TOPIC_CONFIGS
from headrace.errors import ConfigError

__all__ = ["BROKER_CONFIGS", "BrokerConfigs", "Scope", "Setting", "Source", "static_configs"]


class Source(IntEnum):
    """The source of a value, with the numbers of DescribeConfigs."""

    TOPIC = 1
    NODE = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5


class Scope(Enum):
    """The layer that a change at run time applies to."""

    NODE = "node"
    CLUSTER = "cluster"


class Setting(NamedTuple):
    """A value, the name of the key that sets it, and its source."""

    name: str
    value: str | None
    source: Source


def _fallback_key(key: ConfigKey, synonym: Synonym, *, is_last: bool) -> ConfigKey:
    """Return the broker key that sets the default of a topic key.

    A topic key can have several broker keys with different units (ms, minutes, hours). Only the first, which has the
    smallest unit, can change at run time. Only the last has a default.
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
        doc=f"The default of {key.name} for topics"
        + (f", in units of {synonym.factor} ms" if synonym.factor > 1 else "")
        + f". {key.doc}",
        synonyms=(),
        dynamic=synonym == key.synonyms[0],
    )


_BROKER_ONLY_KEYS = (
    ConfigKey(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "The address at which clients connect to this broker.",
        dynamic=False,
    ),
    ConfigKey(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether the broker creates a missing topic when a client requests its metadata.",
    ),
    ConfigKey("broker.id", ConfigType.INT, None, "The id of this broker.", dynamic=False),
    ConfigKey(
        "default.replication.factor",
        ConfigType.INT,
        "1",
        "The number of replicas of a partition. Always 1 on this broker.",
        dynamic=False,
    ),
    ConfigKey(
        "delete.topic.enable", ConfigType.BOOLEAN, "true", "Whether topics can be deleted.", dynamic=False
    ),
    ConfigKey(
        "headrace.partitions.max",
        ConfigType.INT,
        "10000",
        "Maximum number of partitions of all topics together. Each partition uses open files and some memory.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey(
        "headrace.topic.partitions.max",
        ConfigType.INT,
        "1000",
        "Maximum number of partitions of one topic.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey(
        "headrace.topics.max",
        ConfigType.INT,
        "10000",
        "Maximum number of topics.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey(
        "headrace.volatile.max.bytes",
        ConfigType.INT,
        str(1 << 30),
        "Maximum memory of all volatile topics together, in bytes. A topic counts with its retention.bytes times its"
        " number of partitions.",
        at_least(1),
        dynamic=False,
    ),
    ConfigKey("listeners", ConfigType.LIST, None, "The address that this broker listens on.", dynamic=False),
    ConfigKey("log.dirs", ConfigType.LIST, None, "The data directory.", dynamic=False),
    ConfigKey("node.id", ConfigType.INT, None, "The id of this broker.", dynamic=False),
    ConfigKey(
        "num.partitions",
        ConfigType.INT,
        "1",
        "The default number of partitions of a new topic.",
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
    key.name: key
    for key in sorted((*_BROKER_ONLY_KEYS, *LIMIT_CONFIGS, *_FALLBACKS), key=lambda key: key.name)
}

# For each topic key: its first broker key, with all its broker keys in order of unit, smallest unit first.
_UNIT_VARIANTS = {
    key.synonyms[0].name: tuple(synonym.name for synonym in key.synonyms)
    for key in TOPIC_CONFIGS.values()
    if key.synonyms
}

_SETTING_NAMES = frozenset(key.name for key in _BROKER_ONLY_KEYS)


def static_configs(settings: BrokerSettings) -> dict[str, str]:
    """Return the static layer: the broker's settings under Kafka's names."""
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
        if key is None or name in _SETTING_NAMES:
            raise ConfigError(
                f"unknown broker configuration {name!r}",
                hint="set a limit, such as max.connections, or a topic default, such as log.retention.ms",
            )
        static[name] = key.normal(value)
    return static


@dataclass(frozen=True, slots=True)
class BrokerConfigs:
    """The three layers. Values are in normal form."""

    static: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, str] = field(default_factory=dict)
    node: Mapping[str, str] = field(default_factory=dict)

    def layer(self, scope: Scope) -> Mapping[str, str]:
        return self.node if scope is Scope.NODE else self.cluster

    def with_layer(self, scope: Scope, configs: Mapping[str, str]) -> BrokerConfigs:
        return replace(self, node=configs) if scope is Scope.NODE else replace(self, cluster=configs)

    def value(self, name: str) -> str | None:
        """Return the effective value of a broker key."""
        for layer in (self.node, self.cluster, self.static):
            if name in layer:
                return layer[name]
        return BROKER_CONFIGS[name].default

    def fallback(self, key: ConfigKey) -> str | None:
        """Return the value of a topic key for topics that do not override it."""
        for synonym in key.synonyms:
            value = self.value(synonym.name)
            if value is None:
                continue
            if synonym.factor == 1:
                return value
            # A negative value means "no limit" in any unit.
            return value if int(value) < 0 else str(int(value) * synonym.factor)
        return key.default

    def settings_by_priority(self, name: str) -> list[Setting]:
        """Return all values of a broker key and of its variants with larger units, the effective value first.

        As in Kafka, the list is empty if the key itself has no value, even if a key with a larger unit has one.
        """
        values = list(self._values(_UNIT_VARIANTS.get(name, (name,))))
        while values and values[0].name != name:
            values.pop(0)
        return values

    def _values(self, names: tuple[str, ...]) -> Iterator[Setting]:
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
