"""The catalog compared with a dictionary, after any changes and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.broker.refusal import Refusal
from headrace.broker.topics.broker_configs import Scope
from headrace.broker.topics.catalog import ConfigChange
from headrace.broker.topics.new_topic import Growth, NewTopic
from headrace.broker.topics.topic import Topic
from headrace.wire.codes import ErrorCode

from .broker_calls import CatalogHarness

T = TypeVar("T")

TOPICS_MAX = 4
PARTITIONS_MAX = 12
PER_TOPIC_MAX = 5

# So few that they collide: names that differ only in case or in dot and underscore, and invalid names.
GOOD_NAMES = ["a", "A", "a.b", "a_b", "c"]
NAMES = st.sampled_from([*GOOD_NAMES, "", "..", "x/y"])
COUNTS = st.integers(-2, PER_TOPIC_MAX + 1)
CONFIGS = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.ms", "cleanup.policy"]),
    st.sampled_from(["7", "8", "delete", "oops"]),
)
LAYERS = st.dictionaries(
    st.sampled_from(["log.retention.ms", "log.roll.ms"]), st.sampled_from(["7", "9", "oops"])
)


def is_valid(configs: Mapping[str, str]) -> bool:
    return all(
        value in ("delete",) if name.endswith("policy") else value.isdigit()
        for name, value in configs.items()
    )


def set_configs(configs: Mapping[str, str]) -> ConfigChange:
    return lambda current: configs


class CatalogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.harness = CatalogHarness(
            topics_max=TOPICS_MAX, partitions_max=PARTITIONS_MAX, partitions_per_topic_max=PER_TOPIC_MAX
        )
        self.model: dict[str, tuple[int, dict[str, str]]] = {}
        self.ids: dict[str, bytes] = {}
        self.ids_ever: set[bytes] = set()
        self.layers: dict[Scope, dict[str, str]] = {scope: {} for scope in Scope}

    def teardown(self) -> None:
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def partitions(self) -> int:
        return sum(count for count, _ in self.model.values())

    # The oracle: the expected result by the same rules, written a second time without code of the catalog.

    def expected_creation(self, name: str, count: int, configs: Mapping[str, str]) -> ErrorCode:
        if name in ("", "..", "x/y"):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if name in self.model:
            return ErrorCode.TOPIC_ALREADY_EXISTS
        if {"a.b": "a_b", "a_b": "a.b"}.get(name) in self.model:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if not is_valid(configs):
            return ErrorCode.INVALID_CONFIG
        if count in (-2, 0) or count > PER_TOPIC_MAX:
            return ErrorCode.INVALID_PARTITIONS
        if len(self.model) >= TOPICS_MAX or self.partitions() + max(count, 1) > PARTITIONS_MAX:
            return ErrorCode.POLICY_VIOLATION
        return ErrorCode.NONE

    @rule(name=NAMES, count=COUNTS, configs=CONFIGS)
    def create(self, name: str, count: int, configs: dict[str, str]) -> None:
        expected = self.expected_creation(name, count, configs)
        (result,) = self.run(self.harness.catalog.create([NewTopic(name, count, configs=configs)]))
        self.check(result, expected)
        if isinstance(result, Topic):
            assert result.id not in self.ids_ever
            self.ids_ever.add(result.id)
            self.ids[name] = result.id
            self.model[name] = (max(count, 1), configs)

    @rule(name=st.sampled_from(GOOD_NAMES), count=st.integers(1, 2))
    def create_plainly(self, name: str, count: int) -> None:
        self.create(name, count, {})

    @rule(name=st.sampled_from(GOOD_NAMES))
    def delete(self, name: str) -> None:
        topic_id = self.ids.get(name, bytes(range(16)))
        (result,) = self.run(self.harness.catalog.delete([topic_id]))
        self.check(result, ErrorCode.NONE if name in self.model else ErrorCode.UNKNOWN_TOPIC_ID)
        if name in self.model:
            del self.model[name], self.ids[name]

    @rule(name=st.sampled_from(GOOD_NAMES), count=COUNTS)
    def grow(self, name: str, count: int) -> None:
        expected = ErrorCode.NONE
        if name not in self.model:
            expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif count <= self.model[name][0] or count > PER_TOPIC_MAX:
            expected = ErrorCode.INVALID_PARTITIONS
        elif self.partitions() + count - self.model[name][0] > PARTITIONS_MAX:
            expected = ErrorCode.POLICY_VIOLATION
        (result,) = self.run(self.harness.catalog.grow([Growth(name, count)]))
        self.check(result, expected)
        if expected is ErrorCode.NONE:
            self.model[name] = (count, self.model[name][1])

    @rule(name=NAMES, configs=CONFIGS)
    def configure(self, name: str, configs: dict[str, str]) -> None:
        expected = ErrorCode.NONE
        if name in ("..", "x/y"):
            expected = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif name == "":
            expected = ErrorCode.INVALID_REQUEST
        elif not is_valid(configs):
            expected = ErrorCode.INVALID_CONFIG
        elif name not in self.model:
            expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (result,) = self.run(self.harness.catalog.alter_topics([(name, set_configs(configs))]))
        self.check(result, expected)
        if expected is ErrorCode.NONE:
            self.model[name] = (self.model[name][0], configs)

    @rule(scope=st.sampled_from(Scope), configs=LAYERS)
    def configure_broker(self, scope: Scope, configs: dict[str, str]) -> None:
        (result,) = self.run(self.harness.catalog.alter_broker([(scope, set_configs(configs))]))
        self.check(result, ErrorCode.NONE if is_valid(configs) else ErrorCode.INVALID_REQUEST)
        if is_valid(configs):
            self.layers[scope] = configs

    @rule(name=NAMES)
    def fail_to_write(self, name: str) -> None:
        self.harness.journal.fails = True
        self.run(self.harness.catalog.create([NewTopic(name)]))
        self.run(self.harness.catalog.delete(list(self.ids.values())))
        self.harness.journal.fails = False

    @rule()
    def crash_and_start(self) -> None:
        self.harness.reload()

    @rule()
    def replace_the_journals_past(self) -> None:
        self.harness.journal.write_snapshot()

    def check(self, result: object, expected: ErrorCode) -> None:
        code = result.error_code if isinstance(result, Refusal) else ErrorCode.NONE
        assert code is expected, f"{code.name}, not {expected.name}"

    @invariant()
    def the_catalog_is_the_model(self) -> None:
        catalog = self.harness.catalog
        topics = {topic.name: (topic.partitions, dict(topic.configs)) for topic in catalog.topics()}
        assert topics == self.model
        assert {topic.name: topic.id for topic in catalog.topics()} == self.ids
        assert {scope: dict(catalog.configs.layer(scope)) for scope in Scope} == self.layers
        for topic in catalog.topics():
            assert catalog.topic(topic.name) is catalog.topic_by_id(topic.id) is topic

    @invariant()
    def partitions_and_configs_match_the_model(self) -> None:
        partitions = self.harness.partitions
        assert partitions.open == {self.ids[name]: count for name, (count, _) in self.model.items()}
        for name, (_, configs) in self.model.items():
            layers = [configs.get("retention.ms"), *(self.layers[s].get("log.retention.ms") for s in Scope)]
            retention_ms = next((int(value) for value in layers if value is not None), 604_800_000)
            assert partitions.configs[self.ids[name]].retention_ms == retention_ms


TestCatalog = CatalogMachine.TestCase
TestCatalog.settings = settings(max_examples=80, stateful_step_count=30)
