"""Values with several spellings are equal."""

from __future__ import annotations

import json

import pytest

from headrace.model.kinds import Digits, Field, Kind, List, Map, Record, Scalar
from headrace.ops.verify.comparison import RowEquality

FLOAT, DIGITS = Scalar("float"), Digits(20, 2)


def are_equal(kind: Kind, value: object, other: object, *, is_aggregation: bool = True) -> bool:
    equality = RowEquality([Field("value", kind, True)], is_aggregation=is_aggregation)
    in_row = equality.differing_columns((value,), (other,)) == []  # type: ignore[arg-type]
    if isinstance(kind, (List, Map, Record)):
        raw = [f'{{"value":{text}}}' for text in (value, other)]
    else:
        raw = [json.dumps({"value": text}) for text in (value, other)]
    in_value = equality.differing_values(("k", raw[0]), ("k", raw[1])) == []
    assert in_row == in_value
    return in_row


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (FLOAT, 0.1 + 0.2, 0.3),
        (FLOAT, 0.1 + 0.2 - 0.3, 0.0),
        (FLOAT, "NaN", "NaN"),
        (List(FLOAT), "[0.30000000000000004]", "[0.3]"),
        (List(Scalar("int")), "[1, 2]", "[1,2]"),
        (
            Record((Field("a", DIGITS, False), Field("b", FLOAT, True))),
            '{"b":null,"a":1.50}',
            '{"a":1.5,"b":null}',
        ),
        (Map(Scalar("text")), '{"a":"\\u0078"}', '{"a":"x"}'),
    ],
)
def test_equal_values_in_different_spellings_are_equal(kind: Kind, value: object, other: object) -> None:
    assert are_equal(kind, value, other)


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (FLOAT, 0.3, 0.3001),
        (FLOAT, 1e-8, 0.0),
        (FLOAT, 1.0, None),
        (FLOAT, 1.0, "NaN"),
        (Scalar("int"), 10**15, 10**15 + 1),
        (Scalar("text"), "1", 1),
        (List(DIGITS), "[12345678901.23]", "[12345678901.24]"),
        (List(FLOAT), "[1.0]", "[1.0,2.0]"),
        (List(FLOAT), "[true]", "[1]"),
        (Map(FLOAT), '{"a":1}', '{"b":1}'),
        (List(FLOAT), "[1", "[1]"),
    ],
)
def test_different_values_are_not_equal(kind: Kind, value: object, other: object) -> None:
    equality = RowEquality([Field("value", kind, True)], is_aggregation=True)
    assert equality.differing_columns((value,), (other,)) == [0]  # type: ignore[arg-type]
    assert equality.differing_columns((other,), (value,)) == [0]  # type: ignore[arg-type]


def test_floats_that_are_not_sums_must_be_exact() -> None:
    assert not are_equal(FLOAT, 0.1 + 0.2, 0.3, is_aggregation=False)
