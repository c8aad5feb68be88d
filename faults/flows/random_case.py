"""One random flow on the shared broker and Spark session: its input, its runs with random Spark settings, and a
comparison of its topic with the rows that the oracle computes from the log.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from faults.committed_records import committed
from faults.flows.random_tree import LABELS
from faults.flows.shared_world import batches, world
from faults.flows.tree import FlowTree
from faults.flows.tree_dataframe import render
from faults.flows.tree_oracle import Expected, Row, Values, event_row, expected
from faults.servers.spark import session_conf
from faults.wait import until
from headrace.app import App
from headrace.client.generations import progress_of
from headrace.ops.verify.errors import CannotVerify
from headrace.ops.verify.verifier import Verifier

__all__ = ["Difference", "FlowCase", "PlanSetting"]

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_LATE = timedelta(days=1)
_ACCOUNTS, _ITEMS, _CODES = 7, 10, 6
_KEYS_REPORTED_MAX = 3


@dataclass(frozen=True)
class Event:
    number: int
    account: str
    item: str
    code: str
    amount: int
    maybe: int | None
    parts: list[int]
    at: datetime


@dataclass(frozen=True)
class Item:
    item: str
    code: str
    label: str
    weight: int


@dataclass(frozen=True, slots=True)
class PlanSetting:
    """How Spark may plan a flow, and the maximum number of records per batch."""

    shuffle_partitions: int
    broadcast: bool
    adaptive: bool
    compiled: bool
    sort_merge: bool
    max_rows: int

    @classmethod
    def draw(cls, rng: random.Random, records: int) -> PlanSetting:
        return cls(
            shuffle_partitions=rng.choice((1, 2, 2, 3, 3, 4, 5, 16)),
            broadcast=rng.random() < 0.3,
            adaptive=rng.random() < 0.5,
            compiled=rng.random() < 0.1,
            sort_merge=rng.random() < 0.7,
            max_rows=max(1, records // rng.randint(1, 3)),
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        values: dict[str, str | None] = {
            "spark.sql.shuffle.partitions": str(self.shuffle_partitions),
            "spark.sql.adaptive.enabled": str(self.adaptive).lower(),
            "spark.sql.join.preferSortMergeJoin": str(self.sort_merge).lower(),
            "spark.sql.streaming.pollingDelay": "20ms",
        }
        if not self.broadcast:
            values["spark.sql.autoBroadcastJoinThreshold"] = "-1"
        if self.compiled:
            values |= {
                "spark.sql.codegen.wholeStage": "true",
                "spark.sql.codegen.factoryMode": "FALLBACK",
            }
        with session_conf(world().spark, values):
            yield


@dataclass
class Difference:
    """The difference between the contents of a topic and the expected contents."""

    lost: int = 0
    duplicated: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        return bool(self.lost or self.duplicated or self.problems)


class FlowCase:
    def __init__(self, rng: random.Random, tree: FlowTree) -> None:
        self.rng = rng
        self.tree = tree
        self.suffix = suffix = uuid.uuid4().hex[:8]
        self.app = app = App(f"plans-{suffix}")
        self._streams = [
            app.topic(
                f"events{number}-{suffix}",
                Event,
                key="number",
                time="at",
                late=_LATE,
                partitions=rng.randint(1, 4),
            )
            for number in range(tree.streams)
        ]
        self._table = app.table(f"items-{suffix}", Item, key="item") if tree.table else None
        self.output = app.topic(f"derived-{suffix}", key=list(tree.key), partitions=rng.randint(1, 3))
        inputs = [*self._streams, *([self._table] if self._table else [])]
        declare = app.flow(reads=inputs, writes=self.output, name=f"derive-{suffix}", unbounded=True)
        self.flow = declare(render(tree))
        self._generation = 1
        self._numbers = 0
        self._items: dict[str, Item] = {}
        self._phases: list[tuple[list[dict[int, int]], list[Values]]] = []
        """The ends of the streams and the rows of the table, after each write."""

    # Input

    def write(self, records: int) -> None:
        """Change the table, then write more events. Raises if the product refuses the flow."""
        from headrace.flow.compile.compiler import compile_app

        compile_app(world().spark, self.app)
        world().declare(self.app)
        if self._table is not None:
            self._change_table()
        producer = world().cluster.producer({"linger.ms": 5})
        for topic in self._streams:
            for _ in range(records // len(self._streams)):
                key, value = topic.encode(self._draw_event())
                partition = self.rng.randrange(topic.partitions or 1)
                producer.produce(topic.name, key=key, value=value, partition=partition)
        assert producer.flush(30) == 0
        ends = [world().cluster.ends(topic.name) for topic in self._streams]
        table = [vars(item) for item in self._items.values()]
        self._phases.append((ends, table))

    def _draw_event(self) -> Event:
        rng = self.rng
        self._numbers += 1
        return Event(
            number=self._numbers,
            account=f"a{rng.randrange(_ACCOUNTS)}",
            item=f"i{rng.randrange(_ITEMS)}",
            code=f"c{rng.randrange(_CODES)}",
            amount=rng.randrange(20),
            maybe=None if rng.random() < 0.2 else rng.randrange(6),
            parts=[rng.randrange(9) for _ in range(rng.randrange(4))],
            at=_NOON + timedelta(seconds=rng.randrange(240)),
        )

    def _change_table(self) -> None:
        assert self._table is not None
        rng = self.rng
        changes: list[tuple[bytes | None, bytes | None]] = []
        # Some items of the table are in no event, and some events have an item that is not in the table.
        for name in rng.sample([f"i{number}" for number in range(_ITEMS + 2)], _ITEMS - 1):
            if name in self._items and rng.random() < 0.3:
                del self._items[name]
                changes.append((name.encode(), None))
            else:
                item = Item(name, f"c{rng.randrange(_CODES + 1)}", rng.choice(LABELS), rng.randrange(50))
                self._items[name] = item
                changes.append(self._table.encode(item))
        world().write(self._table, changes)

    # Runs

    @property
    def description(self) -> str:
        return f"{self.suffix} {self.tree}"

    def run(self, setting: PlanSetting, *, rebuild: bool = False) -> None:
        """Run until all input is derived. With ``rebuild``, begin a new generation that derives it again."""
        names = [self.flow.name] if rebuild else []
        self._generation += rebuild
        with (
            setting.applied(),
            world().running(self.app, max_rows=setting.max_rows, follow=False, rebuild=names) as run,
        ):
            # The transaction that begins a generation can become visible shortly after its commit is
            # acknowledged.
            until(lambda: self._has_begun() or run.errors, "the generation begins")
            run.wait_until_derived()

    def _has_begun(self) -> bool:
        return progress_of(world().cluster, self.flow, self._generation) is not None

    def verify(self) -> str:
        """Run the product's verifier on the topic of the newest generation. Return "proven", or its report."""
        from headrace.flow.compile.compiler import compile_app

        flow_world = world()
        compiled, schemas = compile_app(flow_world.spark, self.app)
        with Verifier(
            flow_world.spark, flow_world.cluster, self.app, flow_world.settings(), compiled, schemas
        ) as verifier:
            report = verifier.attempt(lambda: verifier.flow(self.flow))
        return str(report) if isinstance(report, CannotVerify) or report.verdict != "proven" else "proven"

    # Results

    def differences(self, generation: int = 1) -> Difference:
        """Compare the topic of a generation with the oracle's result."""
        bootstrap = world().cluster.bootstrap
        expected = self._expected(generation)
        name = self.output.name if generation == 1 else f"{self.output.name}.g{generation}"
        actual: dict[bytes, list[bytes | None]] = {}
        for record in committed(bootstrap, name):
            actual.setdefault(record.key() or b"", []).append(record.value())
        difference = Difference()
        wrong = []
        for key in sorted(expected.rows.keys() | actual.keys()):
            rows_found, expected_rows = actual.get(key, []), expected.rows.get(key, [])
            if rows_found == expected_rows:
                continue
            extra, missing = (
                Counter(rows_found) - Counter(expected_rows),
                Counter(expected_rows) - Counter(rows_found),
            )
            difference.duplicated += extra.total()
            difference.lost += missing.total()
            what = "rows" if extra or missing else "order"
            wrong.append(f"{what} of key {key!r}: {_first_difference(rows_found, expected_rows)}")
        if wrong:
            difference.problems.append(f"{name}: {len(wrong)} keys: {'; '.join(wrong[:_KEYS_REPORTED_MAX])}")
        difference.problems += self._compare_dead_letters(generation, expected)
        return difference

    def _compare_dead_letters(self, generation: int, expected: Expected) -> list[str]:
        letters = committed(world().cluster.bootstrap, self.flow.dead_topic)
        of_generation = f"generation {generation}:".encode()
        actual: Counter[bytes | None] = Counter()
        for letter in letters:
            headers = dict(letter.headers() or [])
            if of_generation in (headers.get("__headrace.errors.message") or b""):
                actual[letter.value()] += 1
        if actual == expected.keyless:
            return []
        return [f"dead letters: {actual - expected.keyless} too many, {expected.keyless - actual} missing"]

    def _expected(self, generation: int) -> Expected:
        bootstrap = world().cluster.bootstrap
        records = batches(bootstrap, f"{self.app.name}.{self.flow.name}", generation)
        inputs = []
        for number, topic in enumerate(self._streams):
            batch_of = _batches_of(records, topic.name)
            rows: list[Row] = []
            for message in committed(bootstrap, topic.name):
                partition, offset = message.partition() or 0, message.offset() or 0
                batch = batch_of[partition, offset]
                rows.append(event_row(batch, number, partition, offset, message.value() or b""))
            inputs.append(rows)
        return expected(self.tree, inputs, self._table_at(records, generation))

    def _table_at(self, records: Sequence[dict[str, Any]], generation: int) -> Any:
        """Return a function from a batch to the table's rows in that batch. The table changed between the runs of the
        first generation. Later generations read only its last state.
        """
        versions: dict[int, list[Values]] = {}
        for record in records:
            phase = len(self._phases) - 1
            if generation == 1:
                [topic, *_] = self._streams
                read_until = {
                    int(partition): to for partition, (_, to) in record["inputs"][topic.name].items()
                }
                phases = [
                    number
                    for number, (ends, _) in enumerate(self._phases)
                    if all(to <= ends[0][partition] for partition, to in read_until.items())
                ]
                phase = phases[0]
            versions[record["batch"]] = self._phases[phase][1]
        return versions.__getitem__


def _batches_of(records: Sequence[dict[str, Any]], topic: str) -> dict[tuple[int, int], int]:
    """Return the number of the batch that read each record, by partition and offset."""
    batch_of: dict[tuple[int, int], int] = {}
    for record in records:
        for partition, (low, high) in record["inputs"].get(topic, {}).items():
            batch_of |= {(int(partition), offset): record["batch"] for offset in range(low, high)}
    return batch_of


def _first_difference(actual_rows: Sequence[bytes | None], expected_rows: Sequence[bytes | None]) -> str:
    index = next(
        (at for at, (row, other) in enumerate(zip(actual_rows, expected_rows, strict=False)) if row != other),
        min(len(actual_rows), len(expected_rows)),
    )
    actual = actual_rows[index] if index < len(actual_rows) else "nothing"
    expected = expected_rows[index] if index < len(expected_rows) else "nothing"
    return f"row {index} of {len(expected_rows)} is {actual!r} instead of {expected!r}"
