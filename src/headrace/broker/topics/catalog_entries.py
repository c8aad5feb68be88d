"""The entries of the catalog's journal. Each entry is a JSON object; ``kind`` is its type.

    topic            the state of a topic: id (32 hex digits), name, partitions, configs. Replaces the previous entry
                     of the same id.
    topic-gone       the topic with this id was deleted
    broker-configs   all keys of one layer of the broker's configuration. Replaces the layer.

Each entry has the complete state of its topic or layer, so it can be applied twice. A snapshot contains the latest
entries. An invalid entry means that synced bytes have changed. The broker then does not start, because a
start without the entry would delete the topic's files.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.broker.topics.broker_configs import BROKER_CONFIGS, Scope
from headrace.broker.topics.config_key import ConfigKey
from headrace.broker.topics.topic import RESERVED_IDS, Topic, name_fault
from headrace.broker.topics.topic_configs import TOPIC_CONFIGS
from headrace.errors import ConfigError, DamagedState

__all__ = ["BrokerConfigsEntry", "Entry", "TopicDeleted", "TopicEntry", "decode_entry", "encode_entry"]


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
                msgspec.json.encode(self), fault or "the topic's id or number of partitions is invalid"
            )
        _check_stored(f"topic '{self.name}'", self.configs, TOPIC_CONFIGS)
        return Topic(self.name, topic_id, self.partitions, self.created_ms, self.configs)


class TopicDeleted(
    msgspec.Struct, frozen=True, tag_field="kind", tag="topic-gone", forbid_unknown_fields=True
):
    id: str

    def topic_id(self) -> bytes:
        return _topic_id(self.id)


class BrokerConfigsEntry(
    msgspec.Struct, frozen=True, tag_field="kind", tag="broker-configs", forbid_unknown_fields=True
):
    scope: Scope
    configs: dict[str, str]

    def __post_init__(self) -> None:
        _check_stored("the broker", self.configs, BROKER_CONFIGS)


Entry = TopicEntry | TopicDeleted | BrokerConfigsEntry

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
        topic_id = bytes.fromhex(text)
    except ValueError:
        topic_id = b""
    if len(topic_id) != 16 or topic_id.hex() != text:
        raise _damaged(text.encode(), "a topic id must have 32 hex digits")
    return topic_id


def _damaged(raw: bytes, reason: str) -> DamagedState:
    return DamagedState(
        "the journal of topics has an invalid entry",
        detail=f"{reason}: {raw[:200]!r}",
        hint="restore the data directory from a backup; the broker has not changed it",
    )


def _check_stored(owner: str, stored: Mapping[str, str], keys: Mapping[str, ConfigKey]) -> None:
    for name, value in stored.items():
        key = keys.get(name)
        try:
            if key is None:
                raise ConfigError("this release does not have this key")
            key.normal(value)
        except ConfigError as error:
            raise DamagedState(
                f"the stored configuration of {owner} is invalid",
                detail=f"{name} = {value!r}: {error.message}",
                hint="restore the data directory from a backup, or start the release that wrote it",
            ) from error
