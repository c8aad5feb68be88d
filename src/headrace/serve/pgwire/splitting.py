"""Where statements end: told in one pass over the text, however strange it is.

What is not closed goes to the end of the text, as the parser behind will say too. So no text is looked at twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["bare", "pieces_of", "statements_of"]

_TAG = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$")
_PLAIN = re.compile(r"[^'\"$;/\-\w]+|\w[\w$]*")
_SPACE = re.compile(r"\s*")
_ESCAPED = re.compile(r"(?:[^'\\]|\\.|'')*'?", re.S)
_WHOLE = ("'", '"')


def pieces_of(text: str) -> Iterator[tuple[str, bool]]:
    """Each piece, and whether it stands for itself only: a literal, a quoted name, or a comment."""
    at = 0
    while at < len(text):
        end, closed = _end_of(text, at)
        yield text[at:end], closed
        at = end


def _end_of(text: str, at: int) -> tuple[int, bool]:
    letter = text[at]
    if letter in _WHOLE:
        return _quoted_end(text, at + 1, letter), True
    if letter in "eE" and text[at + 1 : at + 2] == "'":
        found = _ESCAPED.match(text, at + 2)
        return found.end() if found else len(text), True
    if letter == "$" and (tag := _TAG.match(text, at)):
        return _behind(text, tag[0], tag.end()), True
    if text.startswith("--", at):
        end = text.find("\n", at)
        return (len(text) if end < 0 else end + 1), True
    if text.startswith("/*", at):
        return _behind(text, "*/", at + 2), True
    plain = _PLAIN.match(text, at)
    return (plain.end() if plain else at + 1), False


def _quoted_end(text: str, at: int, quote: str) -> int:
    while (end := text.find(quote, at)) >= 0:
        if not text.startswith(quote, end + 1):
            return end + 1
        at = end + 2
    return len(text)


def _behind(text: str, what: str, at: int) -> int:
    end = text.find(what, at)
    return len(text) if end < 0 else end + len(what)


def statements_of(text: str) -> Iterator[str]:
    """Of a simple query there may be several, with semicolons in between."""
    made: list[str] = []
    for piece, closed in pieces_of(text):
        if piece == ";" and not closed:
            yield "".join(made)
            made = []
        else:
            made.append(piece)
    yield "".join(made)


def bare(sql: str) -> str:
    """Without what is before and behind it."""
    at = 0
    while True:
        space = _SPACE.match(sql, at)
        at = space.end() if space else at
        if not sql.startswith(("--", "/*"), at):
            return sql[at:].strip().rstrip(";").strip()
        at = _end_of(sql, at)[0]
