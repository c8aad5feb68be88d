"""An expression as far as it can be read without evaluating it: what its parts compare with what.

Only a few forms are known, and each must be known whole; everything else is *something*, of which nothing is concluded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

__all__ = ["Every", "Literal", "OneOf", "Part", "Said", "parts_of"]

Literal = str | bool | Decimal | None

_TOKEN = re.compile(
    r"""[ \t\r\n\f]*(?:
    (?P<odd>[rRbB]{1,2}["']|\"{3}|'{3}|//)
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
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DEPTH_MAX = 30

Token = tuple[str, str]
"""Its kind and its text."""


@dataclass(frozen=True, slots=True)
class Said:
    """``root`` with a path compared with a literal: by a relation, or by a method of texts."""

    root: str
    path: tuple[str | int, ...]
    how: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class Every:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    parts: tuple[Part, ...]


Part = Said | Every | OneOf | None
"""None is something that is not known here."""


def parts_of(text: str) -> Part:
    tokens = _tokens(text)
    return None if tokens is None else _part(tokens, 0)


def _tokens(text: str) -> list[Token] | None:
    found: list[Token] = []
    at, end = 0, len(text.rstrip(" \t\r\n\f"))
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup in (None, "odd"):
            return None
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def _part(tokens: list[Token], depth: int) -> Part:
    if not tokens or depth > _DEPTH_MAX:
        return None
    either = _split(tokens, "||")
    if either is None:
        return None
    if len(either) > 1:
        found = tuple(_part(one, depth + 1) for one in either)
        return None if None in found else OneOf(found)
    every = _split(tokens, "&&") or []
    if len(every) > 1:
        return Every(tuple(_part(one, depth + 1) for one in every))
    if tokens[0] == ("sign", "(") and _closing(tokens) == len(tokens) - 1:
        return _part(tokens[1:-1], depth + 1)
    return _said(tokens)


def _split(tokens: list[Token], sign: str) -> list[list[Token]] | None:
    """At the top; None where a choice stands there, or brackets do not fit."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        kind, text = token
        if kind == "sign":
            depth += (text in "([{") - (text in ")]}")
            if depth < 0 or (depth == 0 and text in "?:"):
                return None
            if depth == 0 and text == sign:
                found.append([])
                continue
        found[-1].append(token)
    return found if depth == 0 else None


def _closing(tokens: list[Token]) -> int:
    depth = 0
    for at, (kind, text) in enumerate(tokens):
        if kind == "sign":
            depth += (text in "([{") - (text in ")]}")
        if depth == 0:
            return at
    return -1


def _said(tokens: list[Token]) -> Said | None:
    found = _path(tokens)
    if found is not None:
        root, path, rest = found
        if rest and rest[0][1] in _RELATIONS and rest[0][0] == "sign":
            return _compared(root, path, rest[0][1], rest[1:])
        return _asked(root, path, rest)
    # The literal may come first.
    for at, (kind, text) in enumerate(tokens):
        if kind == "sign" and text in _RELATIONS:
            turned = _path(tokens[at + 1 :])
            if turned is None or turned[2]:
                return None
            return _compared(turned[0], turned[1], _TURNED[text], tokens[:at])
    return None


def _path(tokens: list[Token]) -> tuple[str, tuple[str | int, ...], list[Token]] | None:
    """A name and what of it, and what follows."""
    if not tokens or tokens[0][0] != "name" or tokens[0][1] in ("true", "false", "null"):
        return None
    path: list[str | int] = []
    at = 1
    while at < len(tokens):
        kinds, texts = [one for one, _ in tokens[at : at + 3]], [one for _, one in tokens[at : at + 3]]
        if texts[0] == "." and kinds[1:2] == ["name"] and texts[2:3] != ["("]:
            path.append(texts[1])
            at += 2
        elif texts[0] == "[" and texts[2:3] == ["]"] and kinds[1] == "text":
            name = _text(texts[1])
            if name is None:
                return None
            path.append(name)
            at += 3
        elif texts[0] == "[" and texts[2:3] == ["]"] and kinds[1] == "number" and texts[1].isdecimal():
            path.append(int(texts[1]))
            at += 3
        else:
            break
    return tokens[0][1], tuple(path), tokens[at:]


def _compared(root: str, path: tuple[str | int, ...], how: str, rest: list[Token]) -> Said | None:
    match rest:
        case [("text", text)]:
            made = _text(text)
            return None if made is None else Said(root, path, how, made)
        case [("number", number)]:
            return Said(root, path, how, Decimal(number))
        case [("sign", "-"), ("number", number)]:
            return Said(root, path, how, -Decimal(number))
        case [("name", "true" | "false" as truth)]:
            return Said(root, path, how, truth == "true")
        case [("name", "null")]:
            return Said(root, path, how, None)
    return None


def _asked(root: str, path: tuple[str | int, ...], rest: list[Token]) -> Said | None:
    match rest:
        case [("sign", "."), ("name", method), ("sign", "("), ("text", text), ("sign", ")")]:
            made = _text(text)
            if made is not None and method in _METHODS:
                return Said(root, path, method, made)
    return None


def _text(quoted: str) -> str | None:
    """None where it has escapes other than the plain ones."""
    inner = quoted[1:-1]
    if "\\" not in inner:
        return inner
    if any(one not in _PLAIN_ESCAPES for one in _ESCAPE.findall(inner)):
        return None
    return _ESCAPE.sub(lambda found: _PLAIN_ESCAPES[found[1]], inner)
