"""Parses the part of CEL (Common Expression Language) that ``sieve.py`` can use: comparisons joined by && and ||.

The parser recognizes a few forms. For any other form it returns None, and the sieve then passes every record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

__all__ = ["And", "Comparison", "Condition", "Literal", "Or", "parse_condition"]

Literal = str | bool | Decimal | None

_TOKEN = re.compile(
    r"""[ \t\r\n\f]*(?:
    (?P<unsupported>[rRbB]{1,2}["']|\"{3}|'{3}|//)
    |(?P<text>"(?:[^"\\\n\r]|\\.)*"|'(?:[^'\\\n\r]|\\.)*')
    |(?P<number>(?:[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+)(?![0-9A-Za-z_.]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    )""",
    re.VERBOSE,
)
_PLAIN_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "r": "\r"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_METHODS = frozenset({"contains", "startsWith", "endsWith"})
_RELATIONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_SWAPPED_RELATIONS = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DEPTH_MAX = 30

Token = tuple[str, str]
"""The token's kind and text."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares the value at ``path`` in ``root`` with a literal, by a relation such as ``<`` or by a string method."""

    root: str
    path: tuple[str | int, ...]
    operator: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Condition, ...]


Condition = Comparison | And | Or | None
"""None means that the form is not recognized."""


def parse_condition(text: str) -> Condition:
    tokens = _tokens(text)
    return None if tokens is None else _condition(tokens, 0)


def _tokens(text: str) -> list[Token] | None:
    tokens: list[Token] = []
    index, end = 0, len(text.rstrip(" \t\r\n\f"))
    while index < end:
        match = _TOKEN.match(text, index)
        if match is None or match.lastgroup in (None, "unsupported"):
            return None
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        index = match.end()
    return tokens


def _condition(tokens: list[Token], depth: int) -> Condition:
    if not tokens or depth > _DEPTH_MAX:
        return None
    alternatives = _split(tokens, "||")
    if alternatives is None:
        return None
    if len(alternatives) > 1:
        parts = tuple(_condition(part, depth + 1) for part in alternatives)
        return None if None in parts else Or(parts)
    conjuncts = _split(tokens, "&&") or []
    if len(conjuncts) > 1:
        return And(tuple(_condition(part, depth + 1) for part in conjuncts))
    if tokens[0] == ("sign", "(") and _closing_index(tokens) == len(tokens) - 1:
        return _condition(tokens[1:-1], depth + 1)
    return _comparison(tokens)


def _split(tokens: list[Token], sign: str) -> list[list[Token]] | None:
    """Split at each ``sign`` outside brackets. Return None if ``?`` or ``:`` is outside brackets, or a bracket is
    unmatched.
    """
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        kind, text = token
        if kind == "sign":
            depth += (text in "([{") - (text in ")]}")
            if depth < 0 or (depth == 0 and text in "?:"):
                return None
            if depth == 0 and text == sign:
                parts.append([])
                continue
        parts[-1].append(token)
    return parts if depth == 0 else None


def _closing_index(tokens: list[Token]) -> int:
    depth = 0
    for index, (kind, text) in enumerate(tokens):
        if kind == "sign":
            depth += (text in "([{") - (text in ")]}")
        if depth == 0:
            return index
    return -1


def _comparison(tokens: list[Token]) -> Comparison | None:
    parsed = _path(tokens)
    if parsed is not None:
        root, path, rest = parsed
        if rest and rest[0][1] in _RELATIONS and rest[0][0] == "sign":
            return _relation(root, path, rest[0][1], rest[1:])
        return _method_call(root, path, rest)
    # Otherwise the literal comes first, as in 5 < value.amount.
    for index, (kind, text) in enumerate(tokens):
        if kind == "sign" and text in _RELATIONS:
            right_path = _path(tokens[index + 1 :])
            if right_path is None or right_path[2]:
                return None
            return _relation(right_path[0], right_path[1], _SWAPPED_RELATIONS[text], tokens[:index])
    return None


def _path(tokens: list[Token]) -> tuple[str, tuple[str | int, ...], list[Token]] | None:
    """Return the root name, the path in it, and the remaining tokens."""
    if not tokens or tokens[0][0] != "name" or tokens[0][1] in ("true", "false", "null"):
        return None
    path: list[str | int] = []
    index = 1
    while index < len(tokens):
        kinds, texts = (
            [kind for kind, _ in tokens[index : index + 3]],
            [text for _, text in tokens[index : index + 3]],
        )
        if texts[0] == "." and kinds[1:2] == ["name"] and texts[2:3] != ["("]:
            path.append(texts[1])
            index += 2
        elif texts[0] == "[" and texts[2:3] == ["]"] and kinds[1] == "text":
            name = _text(texts[1])
            if name is None:
                return None
            path.append(name)
            index += 3
        elif texts[0] == "[" and texts[2:3] == ["]"] and kinds[1] == "number" and texts[1].isdecimal():
            path.append(int(texts[1]))
            index += 3
        else:
            break
    return tokens[0][1], tuple(path), tokens[index:]


def _relation(root: str, path: tuple[str | int, ...], operator: str, rest: list[Token]) -> Comparison | None:
    match rest:
        case [("text", text)]:
            literal = _text(text)
            return None if literal is None else Comparison(root, path, operator, literal)
        case [("number", number)]:
            return Comparison(root, path, operator, Decimal(number))
        case [("sign", "-"), ("number", number)]:
            return Comparison(root, path, operator, -Decimal(number))
        case [("name", "true" | "false" as boolean)]:
            return Comparison(root, path, operator, boolean == "true")
        case [("name", "null")]:
            return Comparison(root, path, operator, None)
    return None


def _method_call(root: str, path: tuple[str | int, ...], rest: list[Token]) -> Comparison | None:
    match rest:
        case [("sign", "."), ("name", method), ("sign", "("), ("text", text), ("sign", ")")]:
            literal = _text(text)
            if literal is not None and method in _METHODS:
                return Comparison(root, path, method, literal)
    return None


def _text(quoted: str) -> str | None:
    """Return the unquoted text, or None if it has an escape that is not in ``_PLAIN_ESCAPES``."""
    inner = quoted[1:-1]
    if "\\" not in inner:
        return inner
    if any(escape not in _PLAIN_ESCAPES for escape in _ESCAPE.findall(inner)):
        return None
    return _ESCAPE.sub(lambda match: _PLAIN_ESCAPES[match[1]], inner)
