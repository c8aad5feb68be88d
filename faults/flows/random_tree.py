"""Draws random flows as trees of steps. The product accepts most of them."""

from __future__ import annotations

import random
from collections.abc import Callable

from faults.flows.tree import (
    MINUTE,
    Aggregate,
    Compute,
    Condition,
    DropDuplicates,
    Explode,
    Filter,
    FlowTree,
    Join,
    JoinStreams,
    MarkDeleted,
    Repartition,
    Result,
    Select,
    Step,
    Stream,
    Union,
    Unpivot,
    columns_of,
)

__all__ = ["KINDS", "LABELS", "draw_flow"]

LABELS = ("b", "a", "ä", "Z", "zz", 'say "x"', "😀", "")
KINDS = ("table", "duplicates", "aggregate", "plain", "streams")
"""Kinds of flows: with a joined table, with dropped duplicates, aggregating, stateless, a join of two streams."""

_PICK_SHARE = 0.25


def draw_flow(rng: random.Random, kind: str, *, shuffles: bool = False) -> FlowTree:
    """``shuffles``: draw a flow whose rows Spark moves between tasks, unless it broadcasts a table."""
    return _Draw(rng).flow(kind, shuffles=shuffles)


class _Draw:
    """Draws one flow. Column names are numbered, so that every name is unique."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers = 0
        self._drawn_kinds: set[str] = set()
        """The kinds of drawn steps that multiply the rows or enlarge the plan. Each of these kinds is drawn at most
        once.
        """

    def flow(self, kind: str, *, shuffles: bool) -> FlowTree:
        rng, streams = self._rng, 1
        step: Step = Stream(0)
        if kind == "table":
            step = self._add_steps(step, 0, 1)
            step = self._join(step, None)
            step = self._add_steps(step, 0, 2, tables=True)
        elif kind == "streams":
            step, streams = self._two_streams()
            step = self._add_steps(step, 0, 1)
        else:
            if rng.random() < 0.3:
                step, streams = self._union_of_streams(), 2
            step = self._add_steps(step, 1, 3)
        if kind in ("duplicates", "aggregate") and (kind == "duplicates" or rng.random() < 0.3):
            if shuffles or rng.random() < 0.5:
                step = self._repartition(step)
            step = self._drop_duplicates(step)
        if kind == "aggregate":
            step = self._aggregate(step)
            assert isinstance(step, Aggregate)
            key = (*step.by, *([MINUTE] if step.minutes else []))
            return FlowTree(step, streams, False, key)
        if shuffles and kind != "table":
            step = self._repartition(step)
        return self._finish(step, streams, table=kind == "table")

    def _finish(self, step: Step, streams: int, *, table: bool) -> FlowTree:
        rng, columns = self._rng, columns_of(step)
        plain = [name for name, kind in columns.items() if kind in ("text", "int") and name != "number"]
        key = rng.choice(
            (("account",), ("account",), (rng.choice(plain),), tuple(rng.sample(plain, 2)), ("number",))
        )
        others = [name for name in columns if name not in key]
        selected = [*key, *rng.sample(others, rng.randint(min(2, len(others)), len(others)))]
        # Most rows carry the number of their event, so that rows of the same key are distinguishable.
        if "number" not in selected and rng.random() < 0.8:
            selected.append("number")
        rng.shuffle(selected)
        if rng.random() < 0.2:
            step = MarkDeleted(step, self._draw_test(step))
        return FlowTree(Select(step, tuple(selected)), streams, table, key)

    # Steps

    def _add_steps(self, step: Step, steps_min: int, steps_max: int, *, tables: bool = False) -> Step:
        draws: list[Callable[[Step], Step]] = [
            self._compute,
            self._filter,
            self._explode,
            self._unpivot,
            self._union,
            self._repartition,
            self._join_rows,
        ]
        if tables:
            draws += [self._join_table] * 2
        for draw in self._rng.choices(draws, k=self._rng.randint(steps_min, steps_max)):
            step = draw(step)
        return step

    def _draw_once(self, step: str) -> bool:
        """Return whether this kind of step is drawn for the first time."""
        is_first = step not in self._drawn_kinds
        self._drawn_kinds.add(step)
        return is_first

    def _name(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}"

    def _int_column(self, step: Step) -> str:
        return self._rng.choice([name for name, kind in columns_of(step).items() if kind == "int"])

    def _draw_test(self, step: Step) -> Condition:
        return Condition(
            self._int_column(step),
            divisor := self._rng.randint(2, 7),
            self._rng.randint(1, max(1, divisor // 2)),
        )

    def _compute(self, step: Step) -> Step:
        operation = self._rng.choice(("add", "times", "modulo", "null if even", "text"))
        return Compute(step, self._name("c"), operation, self._int_column(step), self._rng.randint(2, 9))

    def _filter(self, step: Step) -> Step:
        return Filter(step, self._draw_test(step))

    def _explode(self, step: Step) -> Step:
        if not self._draw_once("explode"):
            return self._compute(step)
        return Explode(step, self._rng.random() < 0.5, self._rng.random() < 0.4, self._name("part"))

    def _unpivot(self, step: Step) -> Step:
        numbers = [name for name, kind in columns_of(step).items() if kind == "int" and name != "number"]
        if len(numbers) < 2 or not self._draw_once("unpivot"):
            return self._compute(step)
        columns = tuple(self._rng.sample(numbers, 2))
        return Unpivot(step, columns, self._name("value"), self._rng.random() < 0.4)

    def _union(self, step: Step) -> Step:
        """Unite the step with one or two copies of itself in which a column was changed."""
        if not self._draw_once("union"):
            return self._filter(step)
        branches = [step]
        for _ in range(self._rng.choice((1, 1, 2))):
            column = self._int_column(step)
            copy: Step = Compute(
                step, column, self._rng.choice(("add", "times")), column, self._rng.randint(2, 9)
            )
            if self._rng.random() < 0.4:
                copy = Filter(copy, self._draw_test(copy))
            branches.insert(self._rng.randint(0, 1), copy)
        return Union(tuple(branches))

    def _union_of_streams(self) -> Step:
        branches = [self._add_plain_steps(Stream(0)), self._add_plain_steps(Stream(1))]
        self._rng.shuffle(branches)
        return Union(tuple(branches))

    def _add_plain_steps(self, step: Step) -> Step:
        """Append steps that do not change the set of columns."""
        if self._rng.random() < 0.5:
            step = Filter(step, self._draw_test(step))
        if self._rng.random() < 0.5:
            step = Compute(step, "amount", "times", "amount", self._rng.randint(2, 9))
        return step

    def _repartition(self, step: Step) -> Step:
        columns = [name for name, kind in columns_of(step).items() if kind in ("int", "text")]
        by = tuple(self._rng.sample(columns, self._rng.randint(1, 2))) if self._rng.random() < 0.7 else ()
        return Repartition(step, self._rng.randint(2, 7), by)

    def _join(self, step: Step, rows: tuple[tuple[str, str, int], ...] | None) -> Step:
        columns = columns_of(step)
        on = self._rng.choice([name for name in ("item", "code", "code") if name in columns])
        how = self._rng.choice(("inner", "inner", "left", "left_semi", "left_anti"))
        pick = self._rng.choice(("first", "last")) if self._rng.random() < _PICK_SHARE else ""
        return Join(step, on, how, self._name("t"), rows, pick)

    def _join_table(self, step: Step) -> Step:
        return self._join(step, None) if self._draw_once("second table") else self._filter(step)

    def _join_rows(self, step: Step) -> Step:
        if not self._draw_once("rows"):
            return self._compute(step)
        values = [f"c{number}" for number in range(8)] + [f"i{number}" for number in range(12)]
        several = self._rng.random() < 0.5
        drawn = self._rng.choices(values, k=16) if several else self._rng.sample(values, 12)
        rows = [(key, self._rng.choice(LABELS), self._rng.randrange(50)) for key in drawn]
        return self._join(step, tuple(rows))

    def _two_streams(self) -> tuple[Step, int]:
        numbers = self._rng.choice(((0, 1), (1, 0), (0, 0)))
        sides: list[Step] = []
        for number in numbers:
            side: Step = Filter(Stream(number), self._draw_test(Stream(number)))
            if self._rng.random() < 0.3:
                side = self._union(side)
            sides.append(side)
        return JoinStreams(*sides), len(set(numbers))

    def _drop_duplicates(self, step: Step) -> Step:
        columns = columns_of(step)
        candidates = [name for name in ("item", "code", "account", "amount", "maybe") if name in columns]
        return DropDuplicates(
            step, tuple(self._rng.sample(candidates, min(len(candidates), self._rng.randint(1, 2))))
        )

    def _aggregate(self, step: Step) -> Step:
        rng, columns = self._rng, columns_of(step)
        keys = [name for name in ("account", "item", "code") if name in columns]
        by = tuple(rng.sample(keys, rng.randint(1, 2)))
        compared = [name for name in ("code", "maybe", "account") if name in columns]
        results = [Result("times", "count", "number")]
        for function in rng.sample(("sum", "min", "max", "max_by", "min_by"), rng.randint(1, 4)):
            ordering = rng.choice(compared) if function.endswith("_by") else ""
            column = "number" if ordering else self._int_column(step)
            results.append(Result(self._name("r"), function, column, ordering))
        return Aggregate(step, by, rng.random() < 0.4, tuple(results))
