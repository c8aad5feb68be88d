"""Inserts a portal's parameters into the statement's tree as constants, so that a value is never parsed as SQL."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from headrace.serve.errors import SqlInvalid, SqlLimitExceeded

__all__ = [
    "ARRAYS",
    "ELEMENTS",
    "Value",
    "array_binary",
    "array_text",
    "decode_parameter",
    "parse_array_binary",
    "parse_array_text",
    "put_parameters",
]

Value = str | list[str | None] | None
"""A value as text, or the elements of an array as texts."""

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


def decode_parameter(value: bytes | None, oid: int, *, binary: bool) -> Value:
    """Decode a parameter. The binary format is supported for numbers, booleans, times, texts, bytes, UUIDs, and arrays
    of those.
    """
    if value is None:
        return None
    if oid not in ELEMENTS:
        return _text_of(value, oid) if binary else value.decode()
    if binary:
        element = ELEMENTS[oid]
        texts = [None if raw is None else _text_of(raw, element) for raw in parse_array_binary(value)]
    else:
        texts = parse_array_text(value.decode())
    return _check_count(texts)


def _check_count(elements: list[str | None]) -> list[str | None]:
    if len(elements) > _ELEMENTS_MAX:
        raise SqlLimitExceeded(f"an array has {len(elements)} elements (limit {_ELEMENTS_MAX})")
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
            timestamp = _EPOCH + timedelta(microseconds=struct.unpack(">q", value)[0])
            return timestamp.isoformat(" ") + ("+00" if oid == 1184 else "")
        if oid == _NUMERIC:
            return _numeric_text(value)
    except (struct.error, OverflowError):
        raise SqlInvalid(f"{len(value)} bytes are not a binary value of type {oid}") from None
    if oid == _BYTEA:
        return "\\x" + value.hex()
    if oid == 2950 and len(value) == 16:
        return str(uuid.UUID(bytes=value))
    if oid in (0, 19, 25, 114, 1042, 1043):
        return value.decode()
    raise SqlInvalid(f"the binary format of type {oid} is not supported", hint="send the value as text")


def _numeric_text(value: bytes) -> str:
    """Decode a numeric: number of base-10,000 digits, weight of the first digit, sign, scale, and the digits."""
    count, weight, sign, scale = struct.unpack_from(">hhHH", value)
    digits = struct.unpack(f">{max(0, count)}h", value[8:])
    if sign not in (0, 0x4000) or not all(0 <= digit < 10_000 for digit in digits):
        raise SqlInvalid("NaN and Infinity are not supported for numeric")
    if abs(weight) > _DIGITS_MAX or scale > 2 * _DIGITS_MAX:
        raise SqlInvalid(f"a number has too many digits (limit {_DIGITS_MAX})")
    groups = {weight - at: digit for at, digit in enumerate(digits)}
    whole = (
        "".join(f"{groups.get(power, 0):04}" for power in range(max(weight, 0), -1, -1)).lstrip("0") or "0"
    )
    fraction = "".join(f"{groups.get(-power, 0):04}" for power in range(1, -(-scale // 4) + 1))[:scale]
    return f"{'-' if sign else ''}{whole}{'.' + fraction if fraction else ''}"


def put_parameters(tree: Any, values: Sequence[Any], oids: Sequence[int]) -> None:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            if node.get("class") == "PARAMETER":
                _put(node, values, oids)
            elif not _put_any(node, values, oids) and not _put_list(node, values, oids):
                pending += node.values()


def _put_any(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> bool:
    """Replace ``= ANY($1)`` by ``IN`` with the elements of the array, so that a store can filter by them."""
    if node.get("class") != "SUBQUERY" or node.get("subquery_type") != "ANY":
        return False
    inner = (node.get("subquery") or {}).get("node") or {}
    selected = inner.get("select_list") or [{}]
    parameter = (selected[0].get("children") or [{}])[0]
    if selected[0].get("function_name") != "unnest" or parameter.get("class") != "PARAMETER":
        return False
    value, oid = _find_parameter(parameter, values, oids)
    if isinstance(value, str):
        # An array without a type arrives as text.
        value = _check_count(parse_array_text(value))
    if not value or node.get("comparison_type") != "COMPARE_EQUAL":
        alias = parameter.get("alias", "")
        parameter.clear()
        parameter |= _list(value or [], ELEMENTS.get(oid, 0), alias) if value is not None else _null(alias)
        # The left side can contain parameters, too.
        put_parameters([node.get("child")], values, oids)
        return True
    child = node["child"]
    put_parameters([child], values, oids)
    constants = [_scalar(element, ELEMENTS.get(oid, 0), "") for element in value]
    alias = node.get("alias", "")
    node.clear()
    node |= {
        "class": "OPERATOR",
        "type": "COMPARE_IN",
        "alias": alias,
        "query_location": 0,
        "children": [child, *constants],
    }
    return True


def _put_list(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> bool:
    """Replace ``$1`` in ``$1::TEXT[]`` if the array was sent without a type."""
    child = node.get("child") or {}
    if (node.get("cast_type") or {}).get("id") != "LIST" or child.get("class") != "PARAMETER":
        return False
    value, _ = _find_parameter(child, values, oids)
    if not isinstance(value, str):
        return False
    node["child"] = _list(_check_count(parse_array_text(value)), 0, "")
    return True


def _find_parameter(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> tuple[Any, int]:
    """Return the parameter's value and OID."""
    name = str(node.get("identifier"))
    if not name.isdecimal() or not 0 < int(name) <= len(values):
        raise SqlInvalid(f"parameter ${name} has no value: the client sent {len(values)} parameters")
    number = int(name)
    return values[number - 1], oids[number - 1] if number <= len(oids) else 0


def _put(node: dict[str, Any], values: Sequence[Any], oids: Sequence[int]) -> None:
    value, oid = _find_parameter(node, values, oids)
    alias = node.get("alias", "")
    node.clear()
    node |= (
        _list(value, ELEMENTS.get(oid, 0), alias) if isinstance(value, list) else _scalar(value, oid, alias)
    )


def _scalar(value: Any, oid: int, alias: str) -> dict[str, Any]:
    if value is None:
        return _null(alias)
    text = str(value)
    if oid == _BYTEA:
        raw = text.removeprefix("\\x")
        text = "".join(f"\\x{raw[at : at + 2]}" for at in range(0, len(raw), 2))
    duckdb_type = _duckdb_type(oid, [text])
    # Without a cast, DuckDB infers the type from the comparison.
    return _cast(_constant(text, ""), duckdb_type, alias) if duckdb_type else _constant(text, alias)


def _list(values: Sequence[str | None], oid: int, alias: str) -> dict[str, Any]:
    children = [_null("") if value is None else _constant(str(value), "") for value in values]
    if oid == _BYTEA:
        children = [_scalar(value, oid, "") for value in values]
    duckdb_type = _duckdb_type(oid, values) or {"id": "VARCHAR", "type_info": None}
    info = {"type": "LIST_TYPE_INFO", "alias": "", "extension_info": None, "child_type": duckdb_type}
    function = {
        "class": "FUNCTION", "type": "FUNCTION", "alias": "", "query_location": 0, "function_name": "list_value",
        "schema": "", "children": children, "filter": None, "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False, "is_operator": False, "export_state": False, "catalog": "",
    }  # fmt: skip
    return _cast(function, {"id": "LIST", "type_info": info}, alias)


def _duckdb_type(oid: int, texts: Sequence[str | None]) -> dict[str, Any] | None:
    """Return DuckDB's type, or None for text and for an unspecified type."""
    if oid == _NUMERIC:
        scale = max([0, *(len(str(text).partition(".")[2]) for text in texts)])
        info = {"type": "DECIMAL_TYPE_INFO", "alias": "", "extension_info": None, "width": _DIGITS_MAX}
        return {"id": "DECIMAL", "type_info": {**info, "scale": min(_DIGITS_MAX, scale)}}
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


def _cast(child: dict[str, Any], duckdb_type: dict[str, Any], alias: str) -> dict[str, Any]:
    return {
        "class": "CAST",
        "type": "OPERATOR_CAST",
        "alias": alias,
        "query_location": 0,
        "child": child,
        "cast_type": duckdb_type,
        "try_cast": False,
    }


ARRAYS = {
    16: 1000, 17: 1001, 19: 1003, 20: 1016, 21: 1005, 23: 1007, 25: 1009, 26: 1028, 114: 199, 700: 1021, 701: 1022,
    1042: 1014, 1043: 1015, 1082: 1182, 1083: 1183, 1114: 1115, 1184: 1185, 1700: 1231, 2950: 2951,
}  # fmt: skip
"""The OID of an array, by the OID of its elements."""
ELEMENTS = {array: element for element, array in ARRAYS.items()}
_HEAD = struct.Struct(">iii")
_NEEDS_NO_QUOTES = re.compile(r"[^\s{}\",\\]+")
_ELEMENT = re.compile(r'(?:\s*"((?:[^"\\]|\\.)*)"\s*|((?:[^{}",\\]|\\.)*))([,}])', re.S)
_ESCAPE = re.compile(r"\\(.)", re.S)


def parse_array_text(text: str) -> list[str | None]:
    text = text.strip()
    if text.replace(" ", "") == "{}":
        return []
    elements: list[str | None] = []
    at = 1 if text.startswith("{") else len(text)
    while at < len(text):
        match = _ELEMENT.match(text, at)
        if match is None:
            break
        at = match.end()
        if match[1] is not None:
            elements.append(_ESCAPE.sub(r"\1", match[1]))
        else:
            word = match[2].strip()
            if not word:
                break
            elements.append(None if word.lower() == "null" else _ESCAPE.sub(r"\1", word))
        if match[3] == "}" and at == len(text):
            return elements
    raise SqlInvalid("a parameter is not a one-dimensional array", hint="write an array such as {1,2,3}")


def parse_array_binary(value: bytes) -> Iterator[bytes | None]:
    """Yield the elements. The caller already knows their type."""
    try:
        dimensions, _, _ = _HEAD.unpack_from(value, 0)
        if dimensions == 0:
            return
        count, _ = struct.unpack_from(">ii", value, _HEAD.size)
        at = _HEAD.size + 8
        if dimensions != 1 or not 0 <= count * 4 <= len(value) - at:
            raise SqlInvalid(f"an array has {dimensions} dimensions (limit 1)")
        for _ in range(count):
            (length,) = struct.unpack_from(">i", value, at)
            at += 4
            if length > len(value) - at:
                raise SqlInvalid("an array ends within an element")
            yield None if length < 0 else value[at : at + length]
            at += max(0, length)
    except struct.error:
        raise SqlInvalid("an array is incomplete") from None


def array_text(values: Sequence[Any], encode: Callable[[Any], bytes]) -> bytes:
    elements = (b"NULL" if value is None else _quoted(encode(value).decode()) for value in values)
    return b"{" + b",".join(elements) + b"}"


def _quoted(text: str) -> bytes:
    if _NEEDS_NO_QUOTES.fullmatch(text) and text.lower() != "null":
        return text.encode()
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.encode()


def array_binary(values: Sequence[Any], element: int, encode: Callable[[Any], bytes]) -> bytes:
    nulls = int(any(value is None for value in values))
    if not values:
        return _HEAD.pack(0, 0, element)
    parts = [_HEAD.pack(1, nulls, element), struct.pack(">ii", len(values), 1)]
    for value in values:
        raw = b"" if value is None else encode(value)
        parts += [struct.pack(">i", -1 if value is None else len(raw)), raw]
    return b"".join(parts)
