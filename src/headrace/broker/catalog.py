"""Which topics there are, how they are configured, and what is configured for the broker as a whole.

A change is first written to the journal, then done to the partitions, then shown to readers, then answered:

    create, grow   journal, open the partitions' files, show. A crash in between: they are made at the next start.
    delete         journal, hide, remove the files. A crash in between: files of unknown ids go at the next start.
    configure      journal, show, tell the partitions.

So what was answered survives any crash, and what is shown is durable. Changes run one after the other; one that has
begun runs to its end even if whoever asked for it goes away, because half of it may be on disk already.
Readers take ``Topic`` objects, which never change; ``version`` tells whether anything did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from headrace.broker import configs
from headrace.broker.broker_configs import BrokerConfigs, Scope, static_configs
from headrace.broker.catalog_entries import (
    BrokerConfigsEntry,
    Entry,
    TopicEntry,
    TopicGone,
    decode_entry,
    encode_entry,
)
from headrace.broker.names import RESERVED, name_fault
from headrace.broker.new_topic import Growth, NewTopic
from headrace.broker.refusal import Refusal
from headrace.broker.settings import BrokerSettings
from headrace.broker.topic import Topic, new_topic_id
from headrace.broker.topic_table import TopicTable
from headrace.broker.turns import give_turn
from headrace.clock import Clock
from headrace.errors import DamagedState, StorageError
from headrace.key_order import FORCE_CONFIG
from headrace.log.config import LogConfig
from headrace.truth import VOLATILE_CONFIG, is_volatile
from headrace.wire.codes import ErrorCode

__all__ = ["Catalog", "CatalogJournal", "ConfigChange", "PartitionHooks"]

T = TypeVar("T")
W = TypeVar("W")

_AT_ONCE = 50

Overrides = tuple[tuple[str, str], ...]
"""A topic's own configuration. Topics with the same one share what follows from it."""

ConfigChange = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From a topic's or a layer's overrides to what they shall be; not checked, may raise ``Refusal``."""


class CatalogJournal(Protocol):
    """The part of the journal that the catalog uses."""

    entries: list[bytes]

    async def write(self, entries: Sequence[bytes]) -> None: ...
    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None: ...


class PartitionHooks(Protocol):
    """What the catalog asks of the one who holds the partitions."""

    async def open_partitions(self, topic: Topic, config: LogConfig) -> None:
        """Open every partition of the topic that is not open yet, making its directory if it is missing."""

    async def close_and_remove(self, topic: Topic) -> None:
        """Close the topic's partitions and remove their files. What cannot be removed is left to the next
        start.
        """

    def reconfigure(self, topic: Topic, config: LogConfig) -> None:
        """From now on the topic's partitions go by ``config``."""


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
        self._min_insync: dict[bytes, int] = {}
        self._memory = 0
        self._memory_at_version = -1
        self._not_shown: list[bytes] = []
        self._one_at_a_time = asyncio.Lock()
        self._running: set[asyncio.Future[Any]] = set()
        for raw in journal.entries:
            self._fold(decode_entry(raw))
        journal.on_snapshot(self._snapshot)

    # Reading

    def topic(self, name: str) -> Topic | None:
        return self._topics.named(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self._topics.of_id(topic_id)

    def topics(self) -> list[Topic]:
        """All of them, by name; not to be changed."""
        return self._topics.by_name()

    def log_config(self, topic: Topic) -> LogConfig:
        """What is in force for the topic's partitions."""
        overrides = tuple(sorted(topic.configs.items()))
        config = self._log_configs.get(overrides)
        if config is None:
            if len(self._log_configs) > 2 * len(self._topics):
                # Let go of those that no topic has any more, so that what is kept stays in proportion.
                self._log_configs.clear()
            config = self._log_configs[overrides] = configs.log_config(topic.configs, self.configs)
        return config

    def min_insync_replicas(self, topic: Topic) -> int:
        """How many replicas acks=all waits for; there is one."""
        number = self._min_insync.get(topic.id)
        if number is None:
            number = self._min_insync[topic.id] = configs.min_insync_replicas(topic.configs, self.configs)
        return number

    # Changing. Each takes a list and gives back as many results, in order: what now is, or why not.

    async def create(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | Refusal]:
        accepted = TopicTable()
        memory = 0

        def plan(new: NewTopic) -> Topic:
            nonlocal memory
            topic = self._within_memory(self._new_topic(new, accepted), memory)
            memory += self._memory_of(topic)
            accepted.put(topic)
            return topic

        async def carry_out(topic: Topic) -> None:
            try:
                await self._hooks.open_partitions(topic, self.log_config(topic))
            finally:
                self._put(topic)

        return await self._change(wanted, plan, TopicEntry.of, carry_out, validate_only=validate_only)

    async def delete(
        self,
        topic_ids: Sequence[bytes],
        *,
        and_then: Callable[[Topic], Awaitable[None]] | None = None,
    ) -> list[Topic | Refusal]:
        """``and_then`` lets go of what else hangs on a topic's name, before the name can be taken again."""

        def plan(topic_id: bytes) -> Topic:
            topic = self._topics.of_id(topic_id)
            if topic is None:
                raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic of this id")
            return topic

        async def carry_out(topic: Topic) -> None:
            self._take_away(topic)
            await self._hooks.close_and_remove(topic)
            if and_then is not None:
                await and_then(topic)

        return await self._change(topic_ids, plan, lambda topic: TopicGone(topic.id.hex()), carry_out)

    async def grow(self, wanted: Sequence[Growth], *, validate_only: bool = False) -> list[Topic | Refusal]:
        added = 0

        def plan(growth: Growth) -> Topic:
            nonlocal added
            topic = self._grown(growth, added)
            added += topic.partitions - self._topics.partitions_of(topic.id)
            return topic

        async def carry_out(topic: Topic) -> None:
            try:
                await self._hooks.open_partitions(topic, self.log_config(topic))
            finally:
                self._put(topic)

        return await self._change(wanted, plan, TopicEntry.of, carry_out, validate_only=validate_only)

    async def alter_topics(
        self, wanted: Sequence[tuple[str, ConfigChange]], *, validate_only: bool = False
    ) -> list[Topic | Refusal]:
        async def carry_out(topic: Topic) -> None:
            self._put(topic)
            self._hooks.reconfigure(topic, self.log_config(topic))

        return await self._change(
            wanted,
            lambda altered: self._configured(*altered),
            TopicEntry.of,
            carry_out,
            validate_only=validate_only,
        )

    async def alter_broker(
        self, wanted: Sequence[tuple[Scope, ConfigChange]], *, validate_only: bool = False
    ) -> list[BrokerConfigsEntry | Refusal]:
        def layer(scope: Scope, change: ConfigChange) -> BrokerConfigsEntry:
            after = change(self.configs.layer(scope))
            return BrokerConfigsEntry(scope, configs.check_broker_configs(after, self.configs, scope))

        async def carry_out(entry: BrokerConfigsEntry) -> None:
            before = {topic.id: self.log_config(topic) for topic in self._topics.by_name()}
            self._put_layer(entry)
            for topic in self._topics.by_name():
                if (config := self.log_config(topic)) != before[topic.id]:
                    self._hooks.reconfigure(topic, config)

        return await self._change(
            wanted,
            lambda altered: layer(*altered),
            lambda entry: entry,
            carry_out,
            validate_only=validate_only,
        )

    # How a change runs

    async def _change(
        self,
        wanted: Sequence[W],
        plan: Callable[[W], T],
        entry_of: Callable[[T], Entry],
        carry_out: Callable[[T], Awaitable[None]],
        *,
        validate_only: bool = False,
    ) -> list[T | Refusal]:
        """Each of what is wanted becomes what ``plan`` says, or the ``Refusal`` that it raises."""
        if validate_only:
            return await _planned(wanted, plan)

        async def run() -> list[T | Refusal]:
            async with self._one_at_a_time:
                results = await _planned(wanted, plan)
                accepted = [result for result in results if not isinstance(result, Refusal)]
                if not accepted:
                    return results
                entries = [encode_entry(entry_of(result)) for result in accepted]
                try:
                    await self._journal.write(entries)
                except StorageError as error:
                    return [r if isinstance(r, Refusal) else _not_kept(error) for r in results]
                self._not_shown = entries
                # What is written must be carried out, whatever becomes of the one before it.
                unforeseen: list[Exception] = []
                for at, result in enumerate(results):
                    if isinstance(result, Refusal):
                        continue
                    try:
                        await carry_out(result)
                    except (StorageError, OSError) as error:
                        results[at] = _not_kept(error)
                    except Exception as error:
                        unforeseen.append(error)
                    await give_turn(at + 1, _AT_ONCE)
                self._not_shown = []
                if unforeseen:
                    raise unforeseen[0]
                return results

        task = asyncio.ensure_future(run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait for the changes that are under way, so that files and journal can be closed."""
        while self._running:
            await asyncio.wait(tuple(self._running))

    # The rules

    def _new_topic(self, new: NewTopic, accepted: TopicTable) -> Topic:
        fault = name_fault(new.name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if new.name == RESERVED:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{RESERVED} is a name that Kafka keeps for itself")
        if self._topics.named(new.name) is not None:
            raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic '{new.name}' already exists")
        twin = self._topics.twin_of(new.name) or accepted.twin_of(new.name)
        if twin is not None:
            raise Refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic '{new.name}' collides with topic '{twin.name}': '.' and '_' count as the same",
            )
        unset = [name for name, value in new.configs.items() if value is None]
        if unset:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"no value is given for {', '.join(unset)}")
        overrides = self._checked({name: value for name, value in new.configs.items() if value is not None})
        count = new.partition_count(self._settings)
        if len(self._topics) + len(accepted) >= self._settings.topics_max:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"this broker allows {self._settings.topics_max} topics, and has them",
            )
        self._check_total(count + accepted.partitions)
        return Topic(new.name, new_topic_id(), count, self._clock.now_ms(), overrides)

    def _grown(self, growth: Growth, added: int) -> Topic:
        topic = self._topics.named(growth.name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        growth.check(topic, self._settings)
        self._check_total(growth.count - topic.partitions + added)
        # Leave to break the order of keys is given for one growth.
        kept = {name: value for name, value in topic.configs.items() if name != FORCE_CONFIG}
        return self._within_memory(replace(topic, partitions=growth.count, configs=kept))

    def _configured(self, name: str, change: ConfigChange) -> Topic:
        if not name:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, "defaults for all topics are set on the broker, not here"
            )
        fault = name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = self._topics.named(name)
        overrides = self._checked(change(topic.configs if topic is not None else {}))
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        if is_volatile(overrides) != topic.is_volatile:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{VOLATILE_CONFIG} is chosen when a topic is created; '{name}' is"
                f" {'volatile' if topic.is_volatile else 'kept on disk'} and stays so",
            )
        return self._within_memory(replace(topic, configs=overrides))

    def _within_memory(self, topic: Topic, beside: int = 0) -> Topic:
        """The topic, if volatile ones together, and what is made ``beside`` it, then fit into their memory."""
        if not topic.is_volatile:
            return topic
        if self._memory_at_version != self.version:
            self._memory = sum(map(self._memory_of, self._topics.by_name()))
            self._memory_at_version = self.version
        before = self._topics.of_id(topic.id)
        wanted = self._memory_of(topic)
        taken = self._memory + beside - (0 if before is None else self._memory_of(before))
        if wanted + taken > self._settings.volatile_bytes_max:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"'{topic.name}' may take {wanted} bytes of memory, and other volatile topics {taken};"
                f" headrace.volatile.max.bytes is {self._settings.volatile_bytes_max}",
            )
        return topic

    def _memory_of(self, topic: Topic) -> int:
        if not topic.is_volatile:
            return 0
        return topic.partitions * self.log_config(topic).retention_bytes

    def _checked(self, overrides: Mapping[str, str]) -> dict[str, str]:
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
                f"this broker allows {self._settings.partitions_max} partitions in all topics together;"
                f" it has {self._topics.partitions}, and {added} more were asked for",
            )

    # State

    def _put(self, topic: Topic) -> None:
        self._topics.put(topic)
        self._min_insync.pop(topic.id, None)
        self.version += 1

    def _take_away(self, topic: Topic) -> None:
        self._topics.take_away(topic.id)
        self._min_insync.pop(topic.id, None)
        self.version += 1

    def _put_layer(self, entry: BrokerConfigsEntry) -> None:
        self.configs = self.configs.with_layer(entry.scope, entry.configs)
        self._log_configs.clear()
        self._min_insync.clear()
        self.version += 1

    # The journal

    def _fold(self, entry: Entry) -> None:
        if isinstance(entry, TopicEntry):
            topic = entry.topic()
            named = self._topics.named(topic.name)
            if named is not None and named.id != topic.id:
                raise DamagedState(
                    f"the catalog has two topics named '{topic.name}'",
                    detail=f"ids {named.id.hex()} and {topic.id.hex()}",
                    hint="restore the data directory from a backup; nothing was changed",
                )
            self._put(topic)
        elif isinstance(entry, TopicGone):
            gone = self._topics.of_id(entry.topic_id())
            if gone is not None:
                self._take_away(gone)
        else:
            self._put_layer(entry)

    def _snapshot(self) -> Iterable[bytes]:
        """The whole state, and behind it what is written but not shown yet."""
        for topic in self.topics():
            yield encode_entry(TopicEntry.of(topic))
        for scope in Scope:
            if layer := self.configs.layer(scope):
                yield encode_entry(BrokerConfigsEntry(scope, dict(layer)))
        yield from self._not_shown


async def _planned(wanted: Sequence[W], plan: Callable[[W], T]) -> list[T | Refusal]:
    planned: list[T | Refusal] = []
    for number, item in enumerate(wanted, 1):
        try:
            planned.append(plan(item))
        except Refusal as refusal:
            planned.append(refusal)
        await give_turn(number, _AT_ONCE)
    return planned


def _not_kept(error: StorageError | OSError) -> Refusal:
    return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
