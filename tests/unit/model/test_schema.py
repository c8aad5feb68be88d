from __future__ import annotations

import enum
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Optional

import pytest

import headrace
from headrace import Digits
from headrace.model.errors import SchemaError
from headrace.model.kinds import Enum, Field, List, Map, Record, Scalar
from headrace.model.schema import fields_from_json, schema_of


class Color(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(enum.Enum):
    LOW = 1


class NoValues(enum.Enum):
    pass


@dataclass
class Inner:
    city: str


@dataclass
class Outer:
    text: str
    maybe: int | None
    older: Optional[float]  # noqa: UP045
    price: Annotated[Decimal, Digits(20, 4)]
    plain_price: Decimal
    color: Color
    inner: Inner | None
    many: list[Inner | None]
    fixed: tuple[str, ...]
    named: dict[str, list[date]]
    noted: Annotated[bytes, "sealed"]
    at: datetime = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    shade: Color = Color.BLUE
    rate: Decimal = Decimal("0.5")
    shades: list[Color] = field(default_factory=lambda: [Color.RED])


def test_a_dataclass_becomes_a_schema_with_defaults_as_they_are_read() -> None:
    inner = Record((Field("city", Scalar("text"), False),))
    color = Enum(("red", "blue"))
    assert schema_of(Outer).fields == (
        Field("text", Scalar("text"), False),
        Field("maybe", Scalar("int"), True),
        Field("older", Scalar("float"), True),
        Field("price", Digits(20, 4), False),
        Field("plain_price", Digits(18, 6), False),
        Field("color", color, False),
        Field("inner", inner, True),
        Field("many", List(inner, True), False),
        Field("fixed", List(Scalar("text")), False),
        Field("named", Map(List(Scalar("date"))), False),
        Field("noted", Scalar("bytes"), False),
        Field("at", Scalar("time"), True, datetime(2026, 1, 1, tzinfo=UTC)),
        Field("shade", color, True, "blue"),
        Field("rate", Digits(18, 6), True, Decimal("0.500000")),
        Field("shades", List(color), True, ["red"]),
    )


def test_a_schema_with_a_list_for_a_default_can_be_a_key_of_a_dict() -> None:
    assert {schema_of(Outer): 1}[schema_of(Outer)] == 1


@dataclass
class Endless:
    next: Endless | None


@dataclass
class Unknown:
    what: Missing  # type: ignore[name-defined]  # noqa: F821


REFUSED: dict[str, tuple[type, str]] = {
    "a union": (
        make_dataclass("A", [("x", int | str)]),
        r"A\.x has the type int \| str, which a schema does not support",
    ),
    "a set": (make_dataclass("A", [("x", set[int])]), "which a schema does not support"),
    "anything": (make_dataclass("A", [("x", Any)]), "which a schema does not support"),
    "a map from numbers": (make_dataclass("A", [("x", dict[int, str])]), "which a schema does not support"),
    "a pair": (make_dataclass("A", [("x", tuple[int, str])]), "which a schema does not support"),
    "an enum of numbers": (
        make_dataclass("A", [("x", Level)]),
        "Level must have members, all with string values",
    ),
    "an enum of nothing": (make_dataclass("A", [("x", NoValues)]), "NoValues must have members"),
    "39 digits": (make_dataclass("A", [("x", Annotated[Decimal, Digits(39, 0)])]), "is invalid"),
    "no fields": (make_dataclass("A", []), "A has no fields"),
    "names that differ by case": (
        make_dataclass("A", [("x", int), ("X", int)]),
        "x and X, which differ only by case",
    ),
    "itself": (Endless, "nests deeper than 32 levels"),
    "a type that is not defined": (Unknown, "name 'Missing' is not defined"),
    "a default None that the type does not allow": (
        make_dataclass("A", [("x", int, None)]),
        r"A\.x has the default None, which its type",
    ),
    "None and a default": (
        make_dataclass("A", [("x", int | None, 5)]),
        r"A\.x allows None but has another default",
    ),
    "a default of another type": (
        make_dataclass("A", [("x", int, "5")]),
        "does not fit: the value: expected a 64-bit integer",
    ),
    "a default time without an offset": (
        make_dataclass("A", [("x", datetime, datetime(2026, 1, 1))]),
        "2026-01-01T00:00:00 has no offset",
    ),
    "a dataclass for a default": (
        make_dataclass("A", [("x", Inner, field(default_factory=lambda: Inner("a")))]),
        r"A\.x is a dataclass with a default",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_type_that_events_cannot_hold_is_refused_at_its_declaration(what: str) -> None:
    cls, reason = REFUSED[what]
    with pytest.raises(SchemaError, match=reason):
        schema_of(cls)


def test_a_mistake_in_a_schema_is_shown_at_its_class() -> None:
    with pytest.raises(SchemaError) as caught:
        schema_of(Endless)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert caught.value.location is not None
    assert caught.value.location.file == __file__
    assert "class Endless" in "".join(lines[caught.value.location.line - 1 : caught.value.location.line + 1])


def test_a_mistake_in_a_class_without_a_file_is_shown_where_it_is_used() -> None:
    with pytest.raises(SchemaError) as caught:
        headrace.App("shop").topic("t", make_dataclass("A", [("x", set)]))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_a_kind_of_field_of_a_later_release_is_refused_with_a_hint() -> None:
    with pytest.raises(SchemaError, match="this release does not know the field kind 'interval'"):
        fields_from_json([{"name": "x", "kind": "interval", "optional": False}])


def test_a_location_is_a_line_of_the_user_even_beside_this_package() -> None:
    path = f"{headrace.__path__[0]}_shop.py"
    code = compile("\n\nfrom headrace import App\napp = App('shop')\n", path, "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    assert str(names["app"].location) == f"{path}:4"
