"""One drawn flow on the shared broker and Spark: its input, its runs under settings that are drawn too, and whether its
topic holds what the oracle works out from the log alone.
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

from bench.faults.committed import committed
from bench.faults.flow_oracle import Expected, Row, Values, event_row, expected
from bench.faults.flow_rendering import render
from bench.faults.flow_tree import FlowTree
from bench.faults.flow_world import batches, world
from bench.faults.random_flows import LABELS
from headrace.app import App
from headrace.client.progress_log import current
from headrace.ops.errors import CannotVerify
from headrace.ops.verify import Verifier
from tests.support.waiting import until

__all__ = ["Difference", "FlowCase", "Setting"]

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_LATE = timedelta(days=1)
_ACCOUNTS, _ITEMS, _CODES = 7, 10, 6
_SHOWN = 3


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
class Setting:
    """How Spark may plan a flow, and how many records a batch has at most."""

    shuffle_partitions: int
    broadcast: bool
    adaptive: bool
    compiled: bool
    sort_merge: bool
    max_rows: int

    @classmethod
    def draw(cls, rng: random.Random, records: int) -> Setting:
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
        conf = world().spark.conf
        values = {
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
        before = {name: conf.get(name, None) for name in values}
        for name, value in values.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, found in before.items():
                conf.unset(name) if found is None else conf.set(name, found)


@dataclass
class Difference:
    """Between what a topic holds and what it must hold."""

    lost: int = 0
    duplicated: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def found(self) -> bool:
        return bool(self.lost or self.duplicated or self.problems)


class FlowCase:
    def __init__(self, rng: random.Random, tree: FlowTree) -> None:
        self.rng = rng
        self.tree = tree
        self.mark = mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"plans-{mark}")
        self._streams = [
            app.topic(
                f"events{number}-{mark}",
                Event,
                key="number",
                time="at",
                late=_LATE,
                partitions=rng.randint(1, 4),
            )
            for number in range(tree.streams)
        ]
        self._table = app.table(f"items-{mark}", Item, key="item") if tree.table else None
        self.output = app.topic(f"derived-{mark}", key=list(tree.key), partitions=rng.randint(1, 3))
        reads = [*self._streams, *([self._table] if self._table else [])]
        declare = app.flow(reads=reads, writes=self.output, name=f"derive-{mark}", unbounded=True)
        self.flow = declare(render(tree))
        self._generation = 1
        self._numbers = 0
        self._items: dict[str, Item] = {}
        self._phases: list[tuple[list[dict[int, int]], list[Values]]] = []
        """After each writing: where the streams end, and the rows of the table."""

    # Input

    def write(self, records: int) -> None:
        """More events; the table is changed before them. Raises where the product refuses the flow."""
        from headrace.flow.compiling import compile_app

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
        rng, changes = self.rng, []
        # Some items are in no event, and some events have none.
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
    def told(self) -> str:
        return f"{self.mark} {self.tree}"

    def run(self, setting: Setting, *, rebuild: bool = False) -> None:
        """Until all input is derived, by a new generation if it is rebuilt."""
        names = [self.flow.name] if rebuild else []
        self._generation += rebuild
        with (
            setting.applied(),
            world().running(self.app, max_rows=setting.max_rows, follow=False, rebuild=names) as run,
        ):
            # The end of the transaction that begins a generation may be seen a moment after it was answered.
            until(lambda: self._has_begun() or run.errors, "the generation begins")
            run.derived()

    def _has_begun(self) -> bool:
        found = current(world().cluster, self.flow.progress_topic)
        return found is not None and found.generation.generation == self._generation

    def proof(self) -> str:
        """The product's own verdict on the topic of the newest generation, with what it objects to."""
        from headrace.flow.compiling import compile_app

        where = world()
        compiled, schemas = compile_app(where.spark, self.app)
        with Verifier(where.spark, where.cluster, self.app, where.settings(), compiled, schemas) as verifier:
            report = verifier.tried(lambda: verifier.flow(self.flow))
        return str(report) if isinstance(report, CannotVerify) or report.verdict != "proven" else "proven"

    # What came of it

    def differences(self, generation: int = 1) -> Difference:
        """Between the topic of a generation and the oracle's."""
        bootstrap = world().cluster.bootstrap
        wanted = self._expected(generation)
        name = self.output.name if generation == 1 else f"{self.output.name}.g{generation}"
        found: dict[bytes, list[bytes | None]] = {}
        for record in committed(bootstrap, name):
            found.setdefault(record.key() or b"", []).append(record.value())
        difference = Difference()
        wrong = []
        for key in sorted(wanted.rows.keys() | found.keys()):
            there, expected_there = found.get(key, []), wanted.rows.get(key, [])
            if there == expected_there:
                continue
            more, less = Counter(there) - Counter(expected_there), Counter(expected_there) - Counter(there)
            difference.duplicated += more.total()
            difference.lost += less.total()
            what = "rows" if more or less else "order"
            wrong.append(f"{what} of key {key!r}: {_first_difference(there, expected_there)}")
        if wrong:
            difference.problems.append(f"{name}: {len(wrong)} keys: {'; '.join(wrong[:_SHOWN])}")
        difference.problems += self._keyless(generation, wanted)
        return difference

    def _keyless(self, generation: int, wanted: Expected) -> list[str]:
        letters = committed(world().cluster.bootstrap, self.flow.dead_topic)
        of_generation = f"generation {generation}:".encode()
        found: Counter[bytes | None] = Counter()
        for letter in letters:
            headers = dict(letter.headers() or [])
            if of_generation in (headers.get("__headrace.errors.message") or b""):
                found[letter.value()] += 1
        if found == wanted.keyless:
            return []
        return [f"dead letters: {found - wanted.keyless} too many, {wanted.keyless - found} missing"]

    def _expected(self, generation: int) -> Expected:
        bootstrap = world().cluster.bootstrap
        records = [one for one in batches(bootstrap, self.flow.name) if one["generation"] == generation]
        inputs = []
        for number, topic in enumerate(self._streams):
            batch_of = _batches_of(records, topic.name)
            rows: list[Row] = []
            for one in committed(bootstrap, topic.name):
                partition, offset = one.partition() or 0, one.offset() or 0
                batch = batch_of[partition, offset]
                rows.append(event_row(batch, number, partition, offset, one.value() or b""))
            inputs.append(rows)
        return expected(self.tree, inputs, self._table_at(records, generation))

    def _table_at(self, records: Sequence[dict[str, Any]], generation: int) -> Any:
        """The first generation has seen the table change between its runs; later ones have its last state."""
        versions: dict[int, list[Values]] = {}
        for record in records:
            phase = len(self._phases) - 1
            if generation == 1:
                [topic, *_] = self._streams
                reached = {int(one): to for one, (_, to) in record["inputs"][topic.name].items()}
                inside = [
                    number
                    for number, (ends, _) in enumerate(self._phases)
                    if all(to <= ends[0][one] for one, to in reached.items())
                ]
                phase = inside[0]
            versions[record["batch"]] = self._phases[phase][1]
        return versions.__getitem__


def _batches_of(records: Sequence[dict[str, Any]], topic: str) -> dict[tuple[int, int], int]:
    """Which batch has read a record, by partition and offset."""
    found: dict[tuple[int, int], int] = {}
    for record in records:
        for partition, (low, high) in record["inputs"].get(topic, {}).items():
            found |= {(int(partition), offset): record["batch"] for offset in range(low, high)}
    return found


def _first_difference(found: Sequence[bytes | None], wanted: Sequence[bytes | None]) -> str:
    same = next(
        (at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other),
        min(len(found), len(wanted)),
    )
    there = found[same] if same < len(found) else "nothing"
    return f"at {same} of {len(wanted)} is {there!r} instead of {wanted[same] if same < len(wanted) else 'nothing'!r}"
