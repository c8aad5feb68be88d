"""What a flow does, as data: a small tree of steps.

Spark runs the tree (``bench.faults.flow_rendering``), and plain Python works out what it means
(``bench.faults.flow_oracle``). Neither knows the other; they share the tree and the names of its columns.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "EVENT",
    "MINUTE",
    "Aggregate",
    "Compute",
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
    "Test",
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
"""The fields of an event and their types. ``maybe`` may be null, ``parts`` may be empty."""
MINUTE = "minute"


@dataclass(frozen=True, slots=True)
class Stream:
    """An input of the flow, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Compute:
    """A column of ``column`` and a constant; it takes the place of a column of the same name."""

    child: Step
    name: str
    operation: str
    """``add``, ``times``, ``modulo``, ``null if even``; ``text`` puts the number behind the account."""
    column: str
    constant: int


@dataclass(frozen=True, slots=True)
class Select:
    child: Step
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Test:
    """Whether ``column`` modulo ``divisor`` is at least ``least``; a null fails."""

    column: str
    divisor: int
    least: int


@dataclass(frozen=True, slots=True)
class Filter:
    child: Step
    test: Test


@dataclass(frozen=True, slots=True)
class Explode:
    """A row for each element of ``parts``."""

    child: Step
    outer: bool
    positions: bool
    name: str


@dataclass(frozen=True, slots=True)
class Unpivot:
    """A row for each of the columns, with its name and its value; as ``unpivot`` or with SQL's ``stack``."""

    child: Step
    columns: tuple[str, ...]
    name: str
    stack: bool = False


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """With rows that have ``on``, a label and a weight: those of the flow's table, or those that are listed here."""

    child: Step
    on: str
    how: str
    name: str
    rows: tuple[tuple[str, str, int], ...] | None = None
    one: str = ""
    """Of the rows that have the same ``on``: all of them, the ``first`` by its columns, or the ``last``."""


@dataclass(frozen=True, slots=True)
class JoinStreams:
    """Rows with the same item and code; columns of the right side get the prefix ``r_``."""

    left: Step
    right: Step


@dataclass(frozen=True, slots=True)
class DropDuplicates:
    child: Step
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repartition:
    """By columns, or in turn."""

    child: Step
    count: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """``function`` of ``column``: count, sum, min, max; max_by and min_by compare ``by``."""

    name: str
    function: str
    column: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Aggregate:
    child: Step
    by: tuple[str, ...]
    minutes: bool
    """Whether it groups by the minute of the event time too."""
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class MarkDeleted:
    """Rows that pass the test delete their key."""

    child: Step
    test: Test


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
    """Whether it reads a table behind its streams."""
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
            return [step, *(one for branch in branches for one in steps_of(branch))]
        case JoinStreams(left, right):
            return [step, *steps_of(left), *steps_of(right)]
        case _:
            return [step, *steps_of(step.child)]


def columns_of(step: Step) -> dict[str, str]:
    """The types of the columns that a step gives, in their order."""
    match step:
        case Stream():
            return dict(EVENT)
        case Compute(child, name, operation):
            return columns_of(child) | {name: "text" if operation == "text" else "int"}
        case Select(child, columns):
            known = columns_of(child)
            return {name: known[name] for name in columns}
        case Explode(child, _, positions, name):
            return columns_of(child) | ({f"{name}_at": "int"} if positions else {}) | {name: "int"}
        case Unpivot(child, columns, name):
            kept = {one: kind for one, kind in columns_of(child).items() if one not in columns}
            return kept | {f"{name}_of": "text", name: "int"}
        case Union(branches):
            return columns_of(branches[0])
        case Join(child, _, how, name):
            known = columns_of(child)
            if how in ("left_semi", "left_anti"):
                return known
            return known | {f"{name}_label": "text", f"{name}_weight": "int"}
        case JoinStreams(left, right):
            return columns_of(left) | {f"r_{name}": kind for name, kind in columns_of(right).items()}
        case Aggregate(child, by, minutes, results):
            known = columns_of(child)
            keys = {name: known[name] for name in by} | ({MINUTE: "time"} if minutes else {})
            return keys | {one.name: _type_of(one, known) for one in results}
        case _:
            return columns_of(step.child)


def _type_of(result: Result, known: dict[str, str]) -> str:
    return "int" if result.function in ("count", "sum") else known[result.column]
