"""Values of a portal, put into the tree of its statement as constants: what they are is never taken for SQL."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from headrace.serve.pgwire.arrays import ELEMENTS, elements_of_binary, elements_of_text
from headrace.serve.sql.errors import SqlTooMuch, SqlUnfit

__all__ = ["Value", "put_parameters", "value_of"]

Value = str | list[str | None] | None
"""As text; of an array, its elements."""

_CASTS = {
    16: "BOOLEAN",
    20: "BIGINT",
    21: "SMALLINT",
    23: "INTEGER",
    26: "BIGINT",
    700: "FLOAT",
    701: "DOUBLE",
    1082: "DATE",
    1114: "TIMESTAMP",
    1184: "TIMESTAMP WITH TIME ZONE",
    2950: "UUID",
}
_NUMERIC = 1700
_BYTEA = 17
_DIGITS_MAX = 38
_ELEMENTS_MAX = 10_000
_EPOCH = datetime(2000, 1, 1)
_NUMBERS = {20: ">q", 21: ">h", 23: ">i", 26: ">I", 700: ">f", 701: ">d"}


def value_of(value: bytes | None, oid: int, *, binary: bool) -> Value:
    """A value as it came. Of binary ones: numbers, truth values, times, texts and bytes, and arrays of those."""
    if value is None:
        return None
    if oid not in ELEMENTS:
        return _text_of(value, oid) if binary else value.decode()
    if binary:
        element = ELEMENTS[oid]
        found = [None if one is None else _text_of(one, element) for one in elements_of_binary(value)]
    else:
        found = elements_of_text(value.decode())
    return _few(found)


def _few(elements: list[str | None]) -> list[str | None]:
    if len(elements) > _ELEMENTS_MAX:
        raise SqlTooMuch(f"an array has at most {_ELEMENTS_MAX} elements, and this one {len(elements)}")
    return elements


def _text_of(value: bytes, oid: int) -> str:
    try:
        if oid == 16 and len(value) == 1:
            return "true" if value != b"\0" else "false"
        if oid in _NUMBERS:
            return str(struct.unpack(_NUMBERS[oid], value)[0])
        if oid == 1082:
            return (_EPOCH.date() + timedelta(days=struct.unpack(">i", value)[0])).isoformat()
        if oid in (1114, 1184):
            moment = _EPOCH + timedelta(microseconds=struct.unpack(">q", value)[0])
            return moment.isoformat(" ") + ("+00" if oid == 1184 else "")
        if oid == _NUMERIC:
            return _numeric_text(value)
    except (struct.error, OverflowError):
        raise SqlUnfit(f"a parameter of {len(value)} bytes is none of type {oid}") from None
    if oid == _BYTEA:
        return "\\x" + value.hex()
    if oid == 2950 and len(value) == 16:
        return str(uuid.UUID(bytes=value))
    if oid in (0, 19, 25, 114, 1042, 1043):
        return value.decode()
    raise SqlUnfit(f"a parameter of type {oid} in binary is not understood here", hint="send it as text")


def _numeric_text(value: bytes) -> str:
    """Digits to the base of 10,000: how many, the weight of the first, sign, scale, and themselves."""
    count, weight, sign, scale = struct.unpack_from(">hhHH", value)
    digits = struct.unpack(f">{max(0, count)}h", value[8:])
    if sign not in (0, 0x4000) or not all(0 <= one < 10_000 for one in digits):
        raise SqlUnfit("a parameter is no number: NaN and Infinity are none of numeric here")
    if abs(weight) > _DIGITS_MAX or scale > 2 * _DIGITS_MAX:
        raise SqlUnfit(f"a number has more than {_DIGITS_MAX} digits")
    groups = {weight - at: one for at, one in enumerate(digits)}
    whole = (
        "".join(f"{groups.get(place, 0):04}" for place in range(max(weight, 0), -1, -1)).lstrip("0") or "0"
    )
    after = "".join(f"{groups.get(-place, 0):04}" for place in range(1, -(-scale // 4) + 1))[:scale]
    return f"{'-' if sign else ''}{whole}{'.' + after if after else ''}"


def put_parameters(tree: Any, values: Sequence[Any], oids: Sequence[int]) -> None:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            if node.get("class") == "PARAMETER":
                _put(node, values, oids)
            elif not _put_any(node, values, oids) and not _put_list(node, values, oids):
                waiting += node.values()


def _put_any(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> bool:
    """``= ANY($1)`` is ``IN`` of what is in it: so a store can be asked for these rows only."""
    if node.get("class") != "SUBQUERY" or node.get("subquery_type") != "ANY":
        return False
    inner = (node.get("subquery") or {}).get("node") or {}
    selected = inner.get("select_list") or [{}]
    parameter = (selected[0].get("children") or [{}])[0]
    if selected[0].get("function_name") != "unnest" or parameter.get("class") != "PARAMETER":
        return False
    value, oid = _given(parameter, values, oids)
    if isinstance(value, str):
        # An array that is empty is sent without a type.
        value = _few(elements_of_text(value))
    if not value or node.get("comparison_type") != "COMPARE_EQUAL":
        alias = parameter.get("alias", "")
        parameter.clear()
        parameter |= _list(value or [], ELEMENTS.get(oid, 0), alias) if value is not None else _null(alias)
        # What it is compared with may have parameters too.
        put_parameters([node.get("child")], values, oids)
        return True
    child = node["child"]
    put_parameters([child], values, oids)
    told = [_one(element, ELEMENTS.get(oid, 0), "") for element in value]
    alias = node.get("alias", "")
    node.clear()
    node |= {
        "class": "OPERATOR",
        "type": "COMPARE_IN",
        "alias": alias,
        "query_location": 0,
        "children": [child, *told],
    }
    return True


def _put_list(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> bool:
    """``$1::TEXT[]``, where the array was sent without a type."""
    child = node.get("child") or {}
    if (node.get("cast_type") or {}).get("id") != "LIST" or child.get("class") != "PARAMETER":
        return False
    value, _ = _given(child, values, oids)
    if not isinstance(value, str):
        return False
    node["child"] = _list(_few(elements_of_text(value)), 0, "")
    return True


def _given(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> tuple[Any, int]:
    told = str(node.get("identifier"))
    if not told.isdecimal() or not 0 < int(told) <= len(values):
        raise SqlUnfit(f"there is no parameter ${told}: {len(values)} were given")
    return values[int(told) - 1], oids[int(told) - 1] if int(told) <= len(oids) else 0


def _put(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> None:
    value, oid = _given(node, values, oids)
    alias = node.get("alias", "")
    node.clear()
    node |= _list(value, ELEMENTS.get(oid, 0), alias) if isinstance(value, list) else _one(value, oid, alias)


def _one(value: Any, oid: int, alias: str) -> dict[str, Any]:
    if value is None:
        return _null(alias)
    text = str(value)
    if oid == _BYTEA:
        raw = text.removeprefix("\\x")
        text = "".join(f"\\x{raw[at : at + 2]}" for at in range(0, len(raw), 2))
    kind = _kind(oid, [text])
    # Of no type: it takes that of what it is compared with.
    return _cast(_constant(text, ""), kind, alias) if kind else _constant(text, alias)


def _list(values: Sequence[str | None], oid: int, alias: str) -> dict[str, Any]:
    children = [_null("") if one is None else _constant(str(one), "") for one in values]
    if oid == _BYTEA:
        children = [_one(one, oid, "") for one in values]
    kind = _kind(oid, values) or {"id": "VARCHAR", "type_info": None}
    told = {"type": "LIST_TYPE_INFO", "alias": "", "extension_info": None, "child_type": kind}
    made = {
        "class": "FUNCTION", "type": "FUNCTION", "alias": "", "query_location": 0, "function_name": "list_value",
        "schema": "", "children": children, "filter": None, "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False, "is_operator": False, "export_state": False, "catalog": "",
    }  # fmt: skip
    return _cast(made, {"id": "LIST", "type_info": told}, alias)


def _kind(oid: int, texts: Sequence[str | None]) -> dict[str, Any] | None:
    """The engine's type; None for text, and for what is not told."""
    if oid == _NUMERIC:
        scale = max([0, *(len(str(one).partition(".")[2]) for one in texts)])
        told = {"type": "DECIMAL_TYPE_INFO", "alias": "", "extension_info": None, "width": _DIGITS_MAX}
        return {"id": "DECIMAL", "type_info": {**told, "scale": min(_DIGITS_MAX, scale)}}
    name = "BLOB" if oid == _BYTEA else _CASTS.get(oid)
    return {"id": name, "type_info": None} if name else None


def _null(alias: str) -> dict[str, Any]:
    return {**_constant("", alias), "value": {"type": {"id": "NULL", "type_info": None}, "is_null": True}}


def _constant(value: str, alias: str) -> dict[str, Any]:
    return {
        "class": "CONSTANT",
        "type": "VALUE_CONSTANT",
        "alias": alias,
        "query_location": 0,
        "value": {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": value},
    }


def _cast(child: dict[str, Any], kind: dict[str, Any], alias: str) -> dict[str, Any]:
    return {
        "class": "CAST",
        "type": "OPERATOR_CAST",
        "alias": alias,
        "query_location": 0,
        "child": child,
        "cast_type": kind,
        "try_cast": False,
    }
