"""The filter language for conditions on the columns of a row. Alert rules and ``headrace consume --filter`` use it too.

    filter   = and_ { "or" and_ }
    and_     = unary { "and" unary }
    unary    = "not" unary | "(" filter ")" | column test
    test     = ("=" | "!=") (value | "null") | ("<" | "<=" | ">" | ">=") value
             | "in" "(" value { "," value } ")" | ("startswith" | "contains" | "matches") text
    column   = a name, with dots and dashes as in header.trace-id; any other name in backquotes
    value    = text | number | quantity | "true" | "false"
    text     = in double quotes, as in JSON
    quantity = a number with a unit or underscores: 30s, 64MiB, 25%, 10_000

``parse_filter`` checks the grammar and returns a tree. It never executes code. The caller decides which columns
exist and which tests and values they allow, and translates the tree with ``fold``. ``!=`` negates ``=``, so ``!=`` is
true for null.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from headrace.errors import HeadraceError
from headrace.model.codec.json_text import parse
from headrace.model.errors import ValueDoesNotFit

__all__ = [
    "CHARS_MAX",
    "And",
    "Filter",
    "FilterInvalid",
    "Not",
    "Operand",
    "Operator",
    "Or",
    "Test",
    "fold",
    "parse_filter",
]

CHARS_MAX = 4_000
_TOKENS_MAX = 500
_DEPTH_MAX = 32
_VALUES_MAX = 100
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>"(?:[^"\\\x00-\x1f]|\\.)*+")
  | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.%]))
  | (?P<quantity>[0-9][0-9_]*(?:\.[0-9]+)?(?:%|[A-Za-z]*)(?![\w.%]))
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<name>[^\W\d]\w*(?:\.[\w-]+)*)
  | (?P<sign><=|>=|!=|[=<>(),])
    )""",
    re.VERBOSE,
)
_BLANK = re.compile(r"\s*")
_KEYWORDS = ("and", "or", "not", "in", "startswith", "contains", "matches", "true", "false", "null")
_TEXT_TESTS = ("startswith", "contains", "matches")
_EXAMPLE = 'for example: amount >= 10 and (region = "eu" or not closed = true)'

Operator = Literal["=", "<", "<=", ">", ">=", "startswith", "contains", "matches", "null"]
T = TypeVar("T")


class FilterInvalid(HeadraceError):
    code = "HR-FILTER"


@dataclass(frozen=True, slots=True)
class Operand:
    """A value as written in the filter. For the kind ``text``, quotes and escapes are already decoded."""

    kind: Literal["text", "number", "quantity", "boolean"]
    text: str


@dataclass(frozen=True, slots=True)
class Test:
    column: str
    operator: Operator
    operand: Operand | None = None
    """None if the operator is ``null``."""


@dataclass(frozen=True, slots=True)
class Not:
    part: Filter


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Filter, ...]


Filter = Test | Not | And | Or


def parse_filter(text: str) -> Filter:
    """Raises ``FilterInvalid`` with the position if the text breaks the grammar or a limit."""
    parser = _Parser(_tokenize(text))
    parsed = parser.filter(0)
    parser.expect_end()
    return parsed


def fold(
    parsed: Filter,
    test: Callable[[Test], T],
    negate: Callable[[T], T],
    all_of: Callable[[tuple[T, ...]], T],
    any_of: Callable[[tuple[T, ...]], T],
) -> T:
    """Translate a filter from the bottom up: first its tests, then the operators that combine them."""
    match parsed:
        case Test():
            return test(parsed)
        case Not(part):
            return negate(fold(part, test, negate, all_of, any_of))
        case And(parts):
            return all_of(tuple(fold(part, test, negate, all_of, any_of) for part in parts))
        case Or(parts):
            return any_of(tuple(fold(part, test, negate, all_of, any_of) for part in parts))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: Literal["text", "number", "quantity", "name", "keyword", "sign", "end"]
    text: str
    """The text as written. A quoted name is without its quotes."""
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text[:40])


def _tokenize(text: str) -> list[_Token]:
    if len(text) > CHARS_MAX:
        raise FilterInvalid(f"the filter has {len(text)} characters (limit {CHARS_MAX})")
    tokens: list[_Token] = []
    position = 0
    while (position := _skip_blanks(text, position)) < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise FilterInvalid(
                f"the filter has a syntax error at character {position + 1}: {text[position : position + 20]!r}",
                hint='put texts in double quotes, as in name = "Ada", and names with other characters in backquotes',
            )
        if len(tokens) >= _TOKENS_MAX:
            raise FilterInvalid(f"the filter has more than {_TOKENS_MAX} tokens")
        tokens.append(_token(match.lastgroup, match[match.lastgroup], position))
        position = match.end()
    return [*tokens, _Token("end", "", position)]


def _skip_blanks(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    assert blank is not None
    return blank.end()


def _token(group: str, text: str, position: int) -> _Token:
    match group:
        case "quoted":
            return _Token("name", text[1:-1].replace("``", "`"), position)
        case "name" if text.lower() in _KEYWORDS:
            return _Token("keyword", text.lower(), position)
        case "text" | "number" | "quantity" | "name" | "sign":
            return _Token(group, text, position)
    raise AssertionError(group)


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._index = 0

    def filter(self, depth: int) -> Filter:
        parts = [self._and(depth)]
        while self._take_if("keyword", "or"):
            parts.append(self._and(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self, depth: int) -> Filter:
        parts = [self._unary(depth)]
        while self._take_if("keyword", "and"):
            parts.append(self._unary(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _unary(self, depth: int) -> Filter:
        if depth > _DEPTH_MAX:
            raise FilterInvalid(f"the filter nests deeper than {_DEPTH_MAX} levels")
        if self._take_if("keyword", "not"):
            return Not(self._unary(depth + 1))
        if self._take_if("sign", "("):
            inner = self.filter(depth + 1)
            self._expect("sign", ")")
            return inner
        if self._next.kind != "name":
            raise self._unexpected("a name")
        return self._test(self._next_token().text)

    def _test(self, column: str) -> Filter:
        start = self._index
        token = self._next_token()
        if token.kind == "sign":
            match token.text:
                case "=" | "!=":
                    equal = self._equal(column)
                    return equal if token.text == "=" else Not(equal)
                case "<" | "<=" | ">" | ">=":
                    return Test(column, token.text, self._operand())
        if token.kind == "keyword":
            match token.text:
                case "in":
                    return self._in(column)
                case "startswith" | "contains" | "matches":
                    return Test(column, token.text, self._text())
        self._index = start
        raise self._unexpected(f"=, !=, <, <=, >, >=, in, {', '.join(_TEXT_TESTS)}")

    def _equal(self, column: str) -> Test:
        if self._take_if("keyword", "null"):
            return Test(column, "null")
        return Test(column, "=", self._operand())

    def _in(self, column: str) -> Filter:
        self._expect("sign", "(")
        operands = [self._operand()]
        while self._take_if("sign", ","):
            operands.append(self._operand())
        self._expect("sign", ")")
        if len(operands) > _VALUES_MAX:
            raise FilterInvalid(f"'in' has {len(operands)} values (limit {_VALUES_MAX})")
        return Or(tuple(Test(column, "=", operand) for operand in operands))

    def _operand(self) -> Operand:
        token = self._next
        if token.kind == "keyword" and token.text in ("true", "false"):
            self._next_token()
            return Operand("boolean", token.text)
        if token.kind == "number" or token.kind == "quantity":
            self._next_token()
            return Operand(token.kind, token.text)
        if token.kind == "text":
            return self._text()
        raise self._unexpected("a value")

    def _text(self) -> Operand:
        if self._next.kind != "text":
            raise self._unexpected("a text in double quotes")
        token = self._next_token()
        try:
            return Operand("text", str(parse(token.text.encode("utf-8", "replace"))))
        except ValueDoesNotFit as error:
            raise FilterInvalid(
                f"the text at character {token.position + 1} of the filter is invalid: {error.reason}"
            ) from None

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _next_token(self) -> _Token:
        token = self._tokens[self._index]
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def _take_if(self, kind: str, text: str) -> bool:
        if (self._next.kind, self._next.text) != (kind, text):
            return False
        self._next_token()
        return True

    def _expect(self, kind: str, text: str) -> None:
        if not self._take_if(kind, text):
            raise self._unexpected(repr(text))

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected("and, or, or the end")

    def _unexpected(self, expected: str) -> FilterInvalid:
        return FilterInvalid(
            f"at character {self._next.position + 1} of the filter: expected {expected}, found {self._next}",
            hint=_EXAMPLE,
        )
