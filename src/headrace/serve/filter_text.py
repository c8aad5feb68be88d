"""The words of a filter: a text, cut into names, values and signs. Nothing of it is ever evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from headrace.serve.errors import FilterUnfit

__all__ = ["CHARS_MAX", "Word", "words_of"]

CHARS_MAX = 4_000
_WORDS_MAX = 500
_WORD = re.compile(
    r"""\s*(?:
    (?P<text>"(?:[^"\\\x00-\x1f]|\\.)*+")
  | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<name>[^\W\d]\w*)
  | (?P<sign><=|>=|!=|[=<>(),])
    )""",
    re.VERBOSE,
)
_BLANK = re.compile(r"\s*")

Kind = Literal["text", "number", "name", "word", "sign", "end"]
_KEYWORDS = ("and", "or", "not", "in", "startswith", "true", "false", "null")


@dataclass(frozen=True, slots=True)
class Word:
    kind: Kind
    text: str
    """As it was written; of a quoted name, what it quotes."""
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text[:40])


def words_of(text: str) -> list[Word]:
    if len(text) > CHARS_MAX:
        raise FilterUnfit(f"a filter of {len(text)} characters, where {CHARS_MAX} are allowed")
    found: list[Word] = []
    at = 0
    while (at := _skipped(text, at)) < len(text):
        match = _WORD.match(text, at)
        if match is None or match.lastgroup is None:
            raise FilterUnfit(
                f"character {at + 1} of the filter is not understood: {text[at : at + 20]!r}",
                hint='texts are in double quotes, as in name = "Ada"; names with other signs in backquotes',
            )
        if len(found) >= _WORDS_MAX:
            raise FilterUnfit(f"a filter of more than {_WORDS_MAX} words")
        found.append(_word(match.lastgroup, match[match.lastgroup], at))
        at = match.end()
    return [*found, Word("end", "", at)]


def _skipped(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    assert blank is not None
    return blank.end()


def _word(group: str, text: str, at: int) -> Word:
    match group:
        case "quoted":
            return Word("name", text[1:-1].replace("``", "`"), at)
        case "name" if text.lower() in _KEYWORDS:
            return Word("word", text.lower(), at)
        case "text" | "number" | "name" | "sign":
            return Word(group, text, at)
    raise AssertionError(group)
