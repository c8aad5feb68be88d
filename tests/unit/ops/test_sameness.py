"""Equal in other words, or not."""

from __future__ import annotations

import json

import pytest

from headrace.model.kinds import Digits, Field, Kind, Many, Named, Plain, Record
from headrace.ops.sameness import Sameness

FLOAT, DIGITS = Plain("float"), Digits(20, 2)


def same(kind: Kind, one: object, other: object, *, adds_up: bool = True) -> bool:
    sameness = Sameness([Field("value", kind, True)], floats_add_up=adds_up)
    in_row = sameness.of_rows((one,), (other,)) == []  # type: ignore[arg-type]
    if isinstance(kind, (Many, Named, Record)):
        raw = [f'{{"value":{text}}}' for text in (one, other)]
    else:
        raw = [json.dumps({"value": text}) for text in (one, other)]
    in_value = sameness.of_values(("k", raw[0]), ("k", raw[1])) == []
    assert in_row == in_value
    return in_row


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (FLOAT, 0.1 + 0.2, 0.3),
        (FLOAT, 0.1 + 0.2 - 0.3, 0.0),
        (FLOAT, "NaN", "NaN"),
        (Many(FLOAT), "[0.30000000000000004]", "[0.3]"),
        (Many(Plain("int")), "[1, 2]", "[1,2]"),
        (
            Record((Field("a", DIGITS, False), Field("b", FLOAT, True))),
            '{"b":null,"a":1.50}',
            '{"a":1.5,"b":null}',
        ),
        (Named(Plain("text")), '{"a":"\\u0078"}', '{"a":"x"}'),
    ],
)
def test_they_say_the_same(kind: Kind, one: object, other: object) -> None:
    assert same(kind, one, other)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (FLOAT, 0.3, 0.3001),
        (FLOAT, 1e-8, 0.0),
        (FLOAT, 1.0, None),
        (FLOAT, 1.0, "NaN"),
        (Plain("int"), 10**15, 10**15 + 1),
        (Plain("text"), "1", 1),
        (Many(DIGITS), "[12345678901.23]", "[12345678901.24]"),
        (Many(FLOAT), "[1.0]", "[1.0,2.0]"),
        (Many(FLOAT), "[true]", "[1]"),
        (Named(FLOAT), '{"a":1}', '{"b":1}'),
        (Many(FLOAT), "[1", "[1]"),
    ],
)
def test_they_do_not(kind: Kind, one: object, other: object) -> None:
    sameness = Sameness([Field("value", kind, True)], floats_add_up=True)
    assert sameness.of_rows((one,), (other,)) == [0]  # type: ignore[arg-type]
    assert sameness.of_rows((other,), (one,)) == [0]  # type: ignore[arg-type]


def test_floats_that_are_no_sums_must_be_exact() -> None:
    assert not same(FLOAT, 0.1 + 0.2, 0.3, adds_up=False)
