"""What the catalog writes to its journal: one JSON object per entry, told apart by ``kind``.

    topic            a topic as it now is: id (32 hex digits), name, partitions, configs. Replaces the entry
    of that id. topic-gone       the topic of that id is deleted broker-configs   one layer of broker-wide
    configuration, whole. Replaces the layer.

Each entry says all of what it sets, so folding one twice is folding it once, and a snapshot is the same
entries without their past. An entry that does not read back means that synced bytes changed: the broker
does not start, because starting without a topic would look like its deletion.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.broker.broker_configs import BROKER_CONFIGS, Scope
from headrace.broker.config_key import ConfigKey
from headrace.broker.names import name_fault
from headrace.broker.topic import RESERVED_IDS, Topic
from headrace.broker.topic_configs import TOPIC_CONFIGS
from headrace.errors import ConfigError, DamagedState

__all__ = ["BrokerConfigsEntry", "Entry", "TopicEntry", "TopicGone", "decode_entry", "encode_entry"]


class TopicEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="topic", forbid_unknown_fields=True):
    id: str
    name: str
    partitions: int
    created_ms: int
    configs: dict[str, str]

    @classmethod
    def of(cls, topic: Topic) -> TopicEntry:
        return cls(topic.id.hex(), topic.name, topic.partitions, topic.created_ms, dict(topic.configs))

    def topic(self) -> Topic:
        topic_id = _topic_id(self.id)
        fault = name_fault(self.name)
        if fault is not None or topic_id in RESERVED_IDS or self.partitions < 1:
            raise _damaged(
                msgspec.json.encode(self), fault or "no topic has such an id or number of partitions"
            )
        _check_kept(f"topic '{self.name}'", self.configs, TOPIC_CONFIGS)
        return Topic(self.name, topic_id, self.partitions, self.created_ms, self.configs)


class TopicGone(msgspec.Struct, frozen=True, tag_field="kind", tag="topic-gone", forbid_unknown_fields=True):
    id: str

    def topic_id(self) -> bytes:
        return _topic_id(self.id)


class BrokerConfigsEntry(
    msgspec.Struct, frozen=True, tag_field="kind", tag="broker-configs", forbid_unknown_fields=True
):
    scope: Scope
    configs: dict[str, str]

    def __post_init__(self) -> None:
        _check_kept("the broker", self.configs, BROKER_CONFIGS)


Entry = TopicEntry | TopicGone | BrokerConfigsEntry

_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_encoder = msgspec.json.Encoder()


def encode_entry(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(raw: bytes) -> Entry:
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise _damaged(raw, str(error)) from error


def _topic_id(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16 or found.hex() != text:
        raise _damaged(text.encode(), "a topic id has 32 hex digits")
    return found


def _damaged(raw: bytes, reason: str) -> DamagedState:
    return DamagedState(
        "the catalog of topics cannot be read back",
        detail=f"{reason}: {raw[:200]!r}",
        hint="restore the data directory from a backup; nothing was changed",
    )


def _check_kept(whose: str, kept: Mapping[str, str], keys: Mapping[str, ConfigKey]) -> None:
    for name, value in kept.items():
        key = keys.get(name)
        try:
            if key is None:
                raise ConfigError("this release has no such configuration")
            key.normal(value)
        except ConfigError as error:
            raise DamagedState(
                f"the configuration of {whose} cannot be read back",
                detail=f"{name} = {value!r}: {error.message}",
                hint="restore the data directory from a backup, or start the release that wrote it",
            ) from error
