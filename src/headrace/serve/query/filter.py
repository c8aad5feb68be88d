"""Parses the filter and the sort of a request into conditions on the columns of a view.

``headrace.model.filter`` defines the filter language. The type of a value must match its column, by the same rules as
for values in the log (``headrace.model.codec.strict_decode``). Values without a JSON literal are written as texts:
times, dates, bytes in base64, "NaN".
"""

from __future__ import annotations

from typing import Any

from headrace.model import filter as language
from headrace.model.codec.json_text import FractionText, NumberText
from headrace.model.codec.strict_decode import expected, fit
from headrace.model.errors import ValueDoesNotFit
from headrace.model.filter import FilterInvalid, Operand, Test, fold
from headrace.model.kinds import Enum, Field, Scalar
from headrace.serve.errors import InvalidFilter
from headrace.stores.position import ViewSchema
from headrace.stores.query import All, Compare, Condition, IsNull, Not, OrderBy, is_comparable, starts_with
from headrace.stores.query import Any as AnyOf
from headrace.stores.rows import Value, to_store_value

__all__ = ["column_value", "comparable_field", "parse_filter", "parse_sort"]

_SORTS_MAX = 8


def parse_filter(text: str, schema: ViewSchema) -> Condition:
    try:
        parsed = language.parse_filter(text)
    except FilterInvalid as error:
        raise InvalidFilter(error.message, hint=error.hint) from None
    return fold(parsed, lambda test: _condition(test, schema), Not, All, AnyOf)


def parse_sort(text: str, schema: ViewSchema) -> tuple[OrderBy, ...]:
    """Parse column names such as ``-amount,name``. A minus sorts in descending order."""
    order: list[OrderBy] = []
    for part in text.split(","):
        descending, name = part.startswith("-"), part.removeprefix("-").strip()
        comparable_field(schema, name, "sort")
        if any(by.column == name for by in order):
            raise InvalidFilter(f"sort names {name!r} twice")
        order.append(OrderBy(name, descending))
    if len(order) > _SORTS_MAX:
        raise InvalidFilter(f"sort names {len(order)} columns (limit {_SORTS_MAX})")
    return tuple(order)


def comparable_field(schema: ViewSchema, name: str, parameter: str) -> Field:
    """Return the column. Raise if it does not exist or its values have no order."""
    field = _field(schema, name, parameter)
    if not is_comparable(field):
        raise InvalidFilter(
            f"{parameter}: {name!r} is {expected(field.kind)}, which has no order",
            hint="use a column with single values; a flow can derive such a column",
        )
    return field


def column_value(field: Field, value: Any) -> Value:
    """Convert a JSON value, as ``json_text.parse`` returns it, to a value of the column."""
    try:
        decoded = fit(field.kind, value)
    except ValueDoesNotFit as error:
        raise InvalidFilter(error.inside(field.name).message) from None
    return to_store_value(field.kind)(decoded)


def _field(schema: ViewSchema, name: str, parameter: str) -> Field:
    field = next((field for field in schema.fields if field.name == name), None)
    if field is None:
        raise InvalidFilter(
            f"{parameter}: column {name[:80]!r} does not exist",
            hint=f"the columns are {', '.join(schema.names)}",
        )
    return field


def _condition(test: Test, schema: ViewSchema) -> Condition:
    if test.operand is None:
        _field(schema, test.column, "filter")
        return IsNull(test.column)
    field = comparable_field(schema, test.column, "filter")
    match test.operator:
        case "startswith":
            if field.kind != Scalar("text") and not isinstance(field.kind, Enum):
                raise InvalidFilter(
                    f"filter: {field.name!r} is {expected(field.kind)}; startswith needs a text column"
                )
            return starts_with(field.name, test.operand.text)
        case "=" | "<" | "<=" | ">" | ">=":
            return Compare(field.name, test.operator, _value(field, test.operand))
    raise InvalidFilter(
        f"filter: a view does not support {test.operator}",
        hint="use startswith, or match= for a view with a full-text index",
    )


def _value(field: Field, operand: Operand) -> Value:
    match operand.kind:
        case "boolean":
            return column_value(field, operand.text == "true")
        case "number":
            whole = operand.text.removeprefix("-").isdigit()
            return column_value(field, NumberText(operand.text) if whole else FractionText(operand.text))
        case "text":
            return column_value(field, operand.text)
    raise InvalidFilter(
        f"filter: {operand.text[:40]!r} is not a valid value", hint="write numbers without unit or underscore"
    )
