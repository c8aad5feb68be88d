"""The catalog: all topics with their configuration, and the configuration of the broker.

The catalog writes each change to the journal before it takes effect:

    create, grow   write the journal, open the partitions' files, publish. After a crash the next start creates missing
                   files.
    delete         write the journal, remove the topic from the catalog, remove its files. After a crash the next start
                   removes the files of unknown topic ids.
    configure      write the journal, publish, reconfigure the partitions.

So an acknowledged change survives any crash, and readers see only durable changes. Changes run one at a time. A change
runs to its end even if its caller is cancelled, because a part of it may already be on disk. ``Topic`` objects are
immutable. ``version`` increases with every change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from headrace.broker.event_loop import yield_every
from headrace.broker.refusal import Refusal
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import configs
from headrace.broker.topics.broker_configs import BrokerConfigs, Scope, static_configs
from headrace.broker.topics.catalog_entries import (
    BrokerConfigsEntry,
    Entry,
    TopicDeleted,
    TopicEntry,
    decode_entry,
    encode_entry,
)
from headrace.broker.topics.new_topic import Growth, NewTopic
from headrace.broker.topics.topic import RESERVED, Topic, TopicTable, name_fault, new_topic_id
from headrace.clock import Clock
from headrace.errors import DamagedState, StorageError
from headrace.key_order import FORCE_CONFIG
from headrace.log.config import LogConfig
from headrace.truth import VOLATILE_CONFIG, is_volatile
from headrace.wire.codes import ErrorCode

__all__ = ["Catalog", "CatalogJournal", "ConfigChange", "PartitionHooks"]

T = TypeVar("T")
Item = TypeVar("Item")

_ITEMS_PER_YIELD = 50

Overrides = tuple[tuple[str, str], ...]
"""The configuration that a topic sets itself. Topics with the same overrides share one ``LogConfig``."""

ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Takes the current overrides of a topic or a layer, and returns the new overrides, not validated.

Can raise ``Refusal``.
"""


class CatalogJournal(Protocol):
    """The part of the journal that the catalog uses."""

    entries: list[bytes]

    async def write(self, entries: Sequence[bytes]) -> None: ...
    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None: ...


class PartitionHooks(Protocol):
    """The part of ``Partitions`` that the catalog uses."""

    async def open_partitions(self, topic: Topic, config: LogConfig) -> None:
        """Open every partition of the topic that is not open yet, and create missing directories."""

    async def close_and_remove(self, topic: Topic) -> None:
        """Close the topic's partitions and remove their files. If that fails, the next start removes the files."""

    def reconfigure(self, topic: Topic, config: LogConfig) -> None:
        """Apply ``config`` to the topic's partitions."""


class Catalog:
    def __init__(
        self, journal: CatalogJournal, hooks: PartitionHooks, settings: BrokerSettings, clock: Clock
    ) -> None:
        self.version = 0
        self.configs = BrokerConfigs(static_configs(settings))
        self._journal = journal
        self._hooks = hooks
        self._settings = settings
        self._clock = clock
        self._topics = TopicTable()
        self._log_configs: dict[Overrides, LogConfig] = {}
        self._memory = 0
        self._memory_at_version = -1
        self._unpublished: list[bytes] = []
        self._change_lock = asyncio.Lock()
        self._running: set[asyncio.Future[Any]] = set()
        for raw in journal.entries:
            self._apply_entry(decode_entry(raw))
        journal.on_snapshot(self._snapshot)

    # Reading

    def topic(self, name: str) -> Topic | None:
        return self._topics.find(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self._topics.find_id(topic_id)

    def topics(self) -> list[Topic]:
        """Return all topics, sorted by name. The caller must not change the list."""
        return self._topics.by_name()

    def log_config(self, topic: Topic) -> LogConfig:
        """Return the effective settings of the topic's partitions."""
        overrides = tuple(sorted(topic.configs.items()))
        config = self._log_configs.get(overrides)
        if config is None:
            if len(self._log_configs) > 2 * len(self._topics):
                # Drop the entries of old overrides, or the cache would grow with every change.
                self._log_configs.clear()
            config = self._log_configs[overrides] = configs.log_config(topic.configs, self.configs)
        return config

    # Changing. Each method returns one result per item, in order: the new state, or the refusal.

    async def create(
        self, items: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | Refusal]:
        accepted = TopicTable()
        memory = 0

        def plan(new: NewTopic) -> Topic:
            nonlocal memory
            topic = self._within_memory(self._new_topic(new, accepted), memory)
            memory += self._memory_of(topic)
            accepted.put(topic)
            return topic

        async def apply(topic: Topic) -> None:
            try:
                await self._hooks.open_partitions(topic, self.log_config(topic))
            finally:
                self._put(topic)

        return await self._change(items, plan, TopicEntry.of, apply, validate_only=validate_only)

    async def delete(
        self,
        topic_ids: Sequence[bytes],
        *,
        after_removal: Callable[[Topic], Awaitable[None]] | None = None,
    ) -> list[Topic | Refusal]:
        """Delete topics. ``after_removal`` deletes other state that is stored under a topic's name, before the name can
        be used again.
        """

        def plan(topic_id: bytes) -> Topic:
            topic = self._topics.find_id(topic_id)
            if topic is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            return topic

        async def apply(topic: Topic) -> None:
            self._remove(topic)
            await self._hooks.close_and_remove(topic)
            if after_removal is not None:
                await after_removal(topic)

        return await self._change(topic_ids, plan, lambda topic: TopicDeleted(topic.id.hex()), apply)

    async def grow(self, items: Sequence[Growth], *, validate_only: bool = False) -> list[Topic | Refusal]:
        added = 0

        def plan(growth: Growth) -> Topic:
            nonlocal added
            topic = self._with_added_partitions(growth, added)
            added += topic.partitions - self._topics.partitions_of(topic.id)
            return topic

        async def apply(topic: Topic) -> None:
            try:
                await self._hooks.open_partitions(topic, self.log_config(topic))
            finally:
                self._put(topic)

        return await self._change(items, plan, TopicEntry.of, apply, validate_only=validate_only)

    async def alter_topics(
        self, items: Sequence[tuple[str, ConfigChange]], *, validate_only: bool = False
    ) -> list[Topic | Refusal]:
        async def apply(topic: Topic) -> None:
            self._put(topic)
            self._hooks.reconfigure(topic, self.log_config(topic))

        return await self._change(
            items,
            lambda altered: self._with_changed_configs(*altered),
            TopicEntry.of,
            apply,
            validate_only=validate_only,
        )

    async def alter_broker(
        self, items: Sequence[tuple[Scope, ConfigChange]], *, validate_only: bool = False
    ) -> list[BrokerConfigsEntry | Refusal]:
        def layer(scope: Scope, change: ConfigChange) -> BrokerConfigsEntry:
            after = change(self.configs.layer(scope))
            return BrokerConfigsEntry(scope, configs.check_broker_configs(after, self.configs, scope))

        async def apply(entry: BrokerConfigsEntry) -> None:
            current = {topic.id: self.log_config(topic) for topic in self._topics.by_name()}
            self._put_layer(entry)
            for topic in self._topics.by_name():
                if (config := self.log_config(topic)) != current[topic.id]:
                    self._hooks.reconfigure(topic, config)

        return await self._change(
            items,
            lambda altered: layer(*altered),
            lambda entry: entry,
            apply,
            validate_only=validate_only,
        )

    # Running a change

    async def _change(
        self,
        items: Sequence[Item],
        plan: Callable[[Item], T],
        entry_of: Callable[[T], Entry],
        apply: Callable[[T], Awaitable[None]],
        *,
        validate_only: bool = False,
    ) -> list[T | Refusal]:
        """Validate the changes, write them to the journal, and apply them.

        Returns for each item the result of ``plan``, or the ``Refusal`` that ``plan`` raised.
        """
        if validate_only:
            return await _plan_all(items, plan)

        async def run() -> list[T | Refusal]:
            async with self._change_lock:
                results = await _plan_all(items, plan)
                accepted = [result for result in results if not isinstance(result, Refusal)]
                if not accepted:
                    return results
                entries = [encode_entry(entry_of(result)) for result in accepted]
                try:
                    await self._journal.write(entries)
                except StorageError as error:
                    return [r if isinstance(r, Refusal) else _storage_error(error) for r in results]
                self._unpublished = entries
                # The journal has all these changes, so each must be applied even if another one fails.
                unexpected_errors: list[Exception] = []
                for index, result in enumerate(results):
                    if isinstance(result, Refusal):
                        continue
                    try:
                        await apply(result)
                    except (StorageError, OSError) as error:
                        results[index] = _storage_error(error)
                    except Exception as error:
                        unexpected_errors.append(error)
                    await yield_every(_ITEMS_PER_YIELD, index + 1)
                self._unpublished = []
                if unexpected_errors:
                    raise unexpected_errors[0]
                return results

        task = asyncio.ensure_future(run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait until the changes in progress end, so that files and journal can be closed."""
        while self._running:
            await asyncio.wait(tuple(self._running))

    # Validation

    def _new_topic(self, new: NewTopic, accepted: TopicTable) -> Topic:
        fault = name_fault(new.name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if new.name == RESERVED:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"the topic name {RESERVED} is reserved by Kafka")
        if self._topics.find(new.name) is not None:
            raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic '{new.name}' already exists")
        collision = self._topics.colliding(new.name) or accepted.colliding(new.name)
        if collision is not None:
            raise Refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic '{new.name}' collides with topic '{collision.name}': '.' and '_' count as the same character",
            )
        without_value = [name for name, value in new.configs.items() if value is None]
        if without_value:
            raise Refusal(
                ErrorCode.INVALID_CONFIG, f"the request has no value for {', '.join(without_value)}"
            )
        overrides = self._check_overrides(
            {name: value for name, value in new.configs.items() if value is not None}
        )
        count = new.partition_count(self._settings)
        if len(self._topics) + len(accepted) >= self._settings.topics_max:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"too many topics (limit {self._settings.topics_max}): delete topics, or raise headrace.topics.max",
            )
        self._check_total(count + accepted.partitions)
        return Topic(new.name, new_topic_id(), count, self._clock.now_ms(), overrides)

    def _with_added_partitions(self, growth: Growth, added: int) -> Topic:
        topic = self._topics.find(growth.name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        growth.check(topic, self._settings)
        self._check_total(growth.count - topic.partitions + added)
        # The permission to break the order of each key's records is valid for one request only.
        remaining_configs = {name: value for name, value in topic.configs.items() if name != FORCE_CONFIG}
        return self._within_memory(replace(topic, partitions=growth.count, configs=remaining_configs))

    def _with_changed_configs(self, name: str, change: ConfigChange) -> Topic:
        if not name:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                "the topic name is empty: to set defaults for all topics, change the broker's configuration",
            )
        fault = name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = self._topics.find(name)
        overrides = self._check_overrides(change(topic.configs if topic is not None else {}))
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
        if is_volatile(overrides) != topic.is_volatile:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{VOLATILE_CONFIG} cannot be changed: topic '{name}' was created as"
                f" {'a volatile topic' if topic.is_volatile else 'a topic on disk'}",
            )
        return self._within_memory(replace(topic, configs=overrides))

    def _within_memory(self, topic: Topic, other_new_bytes: int = 0) -> Topic:
        """Return the topic, or raise ``Refusal`` if the volatile topics would exceed their memory limit.

        ``other_new_bytes`` is the memory of the other new topics in the same request.
        """
        if not topic.is_volatile:
            return topic
        if self._memory_at_version != self.version:
            self._memory = sum(map(self._memory_of, self._topics.by_name()))
            self._memory_at_version = self.version
        current = self._topics.find_id(topic.id)
        needed = self._memory_of(topic)
        used = self._memory + other_new_bytes - (0 if current is None else self._memory_of(current))
        if needed + used > self._settings.volatile_bytes_max:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"topic '{topic.name}' needs {needed} bytes of memory, and the other volatile topics use {used} bytes"
                f" (headrace.volatile.max.bytes is {self._settings.volatile_bytes_max})",
            )
        return topic

    def _memory_of(self, topic: Topic) -> int:
        if not topic.is_volatile:
            return 0
        return topic.partitions * self.log_config(topic).retention_bytes

    def _check_overrides(self, overrides: Mapping[str, str]) -> dict[str, str]:
        return configs.check_topic_configs(
            overrides,
            self.configs,
            waits_for_sync=self._settings.waits_for_sync,
            has_archive=self._settings.has_archive,
        )

    def _check_total(self, added: int) -> None:
        if self._topics.partitions + added > self._settings.partitions_max:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"too many partitions: the broker has {self._topics.partitions}, and the request adds {added}"
                f" (headrace.partitions.max is {self._settings.partitions_max})",
            )

    # State

    def _put(self, topic: Topic) -> None:
        self._topics.put(topic)
        self.version += 1

    def _remove(self, topic: Topic) -> None:
        self._topics.remove(topic.id)
        self.version += 1

    def _put_layer(self, entry: BrokerConfigsEntry) -> None:
        self.configs = self.configs.with_layer(entry.scope, entry.configs)
        self._log_configs.clear()
        self.version += 1

    # The journal

    def _apply_entry(self, entry: Entry) -> None:
        if isinstance(entry, TopicEntry):
            topic = entry.topic()
            existing = self._topics.find(topic.name)
            if existing is not None and existing.id != topic.id:
                raise DamagedState(
                    f"the catalog has two topics named '{topic.name}'",
                    detail=f"ids {existing.id.hex()} and {topic.id.hex()}",
                    hint="restore the data directory from a backup; the broker has not changed it",
                )
            self._put(topic)
        elif isinstance(entry, TopicDeleted):
            deleted = self._topics.find_id(entry.topic_id())
            if deleted is not None:
                self._remove(deleted)
        else:
            self._put_layer(entry)

    def _snapshot(self) -> Iterable[bytes]:
        """Return entries of the whole state, then the entries that are written but not published yet."""
        for topic in self.topics():
            yield encode_entry(TopicEntry.of(topic))
        for scope in Scope:
            if layer := self.configs.layer(scope):
                yield encode_entry(BrokerConfigsEntry(scope, dict(layer)))
        yield from self._unpublished


async def _plan_all(items: Sequence[Item], plan: Callable[[Item], T]) -> list[T | Refusal]:
    planned: list[T | Refusal] = []
    for number, item in enumerate(items, 1):
        try:
            planned.append(plan(item))
        except Refusal as refusal:
            planned.append(refusal)
        await yield_every(_ITEMS_PER_YIELD, number)
    return planned


def _storage_error(error: StorageError | OSError) -> Refusal:
    return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
