"""A flow as data: a small tree of steps.

Spark runs the tree (``faults.flows.tree_dataframe``), and plain Python computes its expected result
(``faults.flows.tree_oracle``). The two are independent; they share only the tree and the names of its columns.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "EVENT",
    "MINUTE",
    "Aggregate",
    "Compute",
    "Condition",
    "DropDuplicates",
    "Explode",
    "Filter",
    "FlowTree",
    "Join",
    "JoinStreams",
    "MarkDeleted",
    "Repartition",
    "Result",
    "Select",
    "Step",
    "Stream",
    "Union",
    "Unpivot",
    "columns_of",
]

EVENT = {
    "number": "int",
    "account": "text",
    "item": "text",
    "code": "text",
    "amount": "int",
    "maybe": "int",
    "parts": "list",
    "at": "time",
}
"""The fields of an event and their types. ``maybe`` can be null, ``parts`` can be empty."""
MINUTE = "minute"


@dataclass(frozen=True, slots=True)
class Stream:
    """The input stream with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Computes a column from ``column`` and a constant. The new column replaces a column of the same name."""

    child: Step
    name: str
    operation: str
    """``add``, ``times``, ``modulo``, ``null if even``, or ``text``, which joins the account and ``column`` with a
    slash.
    """
    column: str
    constant: int


@dataclass(frozen=True, slots=True)
class Select:
    child: Step
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """True if ``column`` modulo ``divisor`` is at least ``least``. A null fails the test."""

    column: str
    divisor: int
    least: int


@dataclass(frozen=True, slots=True)
class Filter:
    child: Step
    test: Condition


@dataclass(frozen=True, slots=True)
class Explode:
    """Returns a row per element of ``parts``."""

    child: Step
    outer: bool
    positions: bool
    name: str


@dataclass(frozen=True, slots=True)
class Unpivot:
    """Returns a row per column, with the column's name and value, by ``unpivot`` or SQL's ``stack``."""

    child: Step
    columns: tuple[str, ...]
    name: str
    stack: bool = False


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Joins on ``on`` with rows that have a label and a weight: rows of the flow's table, or those in ``rows``."""

    child: Step
    on: str
    how: str
    name: str
    rows: tuple[tuple[str, str, int], ...] | None = None
    pick: str = ""
    """The rows to join if several have the same ``on``: all (empty), or the ``first`` or ``last`` in column order."""


@dataclass(frozen=True, slots=True)
class JoinStreams:
    """Joins two streams on item and code. Columns of the right side get the prefix ``r_``."""

    left: Step
    right: Step


@dataclass(frozen=True, slots=True)
class DropDuplicates:
    child: Step
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repartition:
    """Repartitions by columns, or round robin without columns."""

    child: Step
    count: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """``function`` of ``column``: count, sum, min, max, max_by or min_by. The last two compare ``by``."""

    name: str
    function: str
    column: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Aggregate:
    child: Step
    by: tuple[str, ...]
    minutes: bool
    """Also group by the minute of the event time."""
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class MarkDeleted:
    """Rows that pass the test delete their key."""

    child: Step
    test: Condition


Step = (
    Stream
    | Compute
    | Select
    | Filter
    | Explode
    | Unpivot
    | Union
    | Join
    | JoinStreams
    | DropDuplicates
    | Repartition
    | Aggregate
    | MarkDeleted
)


@dataclass(frozen=True, slots=True)
class FlowTree:
    root: Step
    streams: int
    table: bool
    """Whether the flow reads a table after its streams."""
    key: tuple[str, ...]

    @property
    def aggregates(self) -> bool:
        return any(isinstance(step, Aggregate) for step in steps_of(self.root))

    @property
    def joins_table(self) -> bool:
        return any(isinstance(step, Join) and step.rows is None for step in steps_of(self.root))


def steps_of(step: Step) -> list[Step]:
    match step:
        case Stream():
            return [step]
        case Union(branches):
            return [step, *(nested for branch in branches for nested in steps_of(branch))]
        case JoinStreams(left, right):
            return [step, *steps_of(left), *steps_of(right)]
        case _:
            return [step, *steps_of(step.child)]


def columns_of(step: Step) -> dict[str, str]:
    """Return the types of the columns that a step returns, in the order of the columns."""
    match step:
        case Stream():
            return dict(EVENT)
        case Compute(child, name, operation):
            return columns_of(child) | {name: "text" if operation == "text" else "int"}
        case Select(child, columns):
            types = columns_of(child)
            return {name: types[name] for name in columns}
        case Explode(child, _, positions, name):
            return columns_of(child) | ({f"{name}_at": "int"} if positions else {}) | {name: "int"}
        case Unpivot(child, columns, name):
            kept = {column: kind for column, kind in columns_of(child).items() if column not in columns}
            return kept | {f"{name}_of": "text", name: "int"}
        case Union(branches):
            return columns_of(branches[0])
        case Join(child, _, how, name):
            types = columns_of(child)
            if how in ("left_semi", "left_anti"):
                return types
            return types | {f"{name}_label": "text", f"{name}_weight": "int"}
        case JoinStreams(left, right):
            return columns_of(left) | {f"r_{name}": kind for name, kind in columns_of(right).items()}
        case Aggregate(child, by, minutes, results):
            types = columns_of(child)
            keys = {name: types[name] for name in by} | ({MINUTE: "time"} if minutes else {})
            return keys | {result.name: _type_of(result, types) for result in results}
        case _:
            return columns_of(step.child)


def _type_of(result: Result, types: dict[str, str]) -> str:
    return "int" if result.function in ("count", "sum") else types[result.column]
