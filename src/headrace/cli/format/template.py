"""A percent format taken apart: literal bytes and fields, each with the modifier that followed it in braces.

\\t \\n \\r \\\\ \\xNN      the usual characters, or any byte
%% %{ %}              a percent sign, a brace
%v  %v{hex}           a field by its letter, with or without a modifier
%d{strftime[%F]}      a modifier's own text stands in any number of [], {}, () or ##
%h{%k=%v }            a format of its own, applied once per header
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.cli.errors import UsageError

__all__ = ["Field", "FormatError", "Part", "split_modifier", "take_apart"]

_BACKSLASH = {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\", "0": b"\0"}
_CLOSERS = {"[": "]", "{": "}", "(": ")", "#": "#"}
_WORD = re.compile(r"([a-z][a-z0-9-]*)(.*)", re.DOTALL)


class FormatError(UsageError):
    code = "HR-CLI-FORMAT"


@dataclass(frozen=True, slots=True)
class Field:
    letter: str
    modifier: str | None = None


Part = bytes | Field


def _fail(template: str, at: int, what: str) -> FormatError:
    return FormatError(
        f"the format {template!r} has {what} at character {at + 1}",
        hint=r"fields are %t %k %v %h{…} %p %o %d …, %% is a percent sign; see headrace consume --help",
    )


def _end_of_modifier(template: str, opened: int) -> int:
    """Where the brace at ``opened`` closes; ``%{`` and ``%}`` inside are characters, not braces."""
    depth = 0
    at = opened
    while at < len(template):
        char = template[at]
        if char in "%\\":
            at += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if not depth:
                return at
        at += 1
    raise _fail(template, opened, "a brace that is never closed")


def take_apart(template: str) -> list[Part]:
    parts: list[Part] = []
    literal = bytearray()
    at = 0

    def literal_ends() -> None:
        if literal:
            parts.append(bytes(literal))
            literal.clear()

    while at < len(template):
        char = template[at]
        if char == "\\":
            follower = template[at + 1 : at + 2]
            if follower == "x":
                digits = template[at + 2 : at + 4]
                if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                    raise _fail(template, at, r"\x without two hexadecimal digits")
                literal.append(int(digits, 16))
                at += 4
            elif follower in _BACKSLASH:
                literal += _BACKSLASH[follower]
                at += 2
            else:
                raise _fail(
                    template, at, f"the unknown escape \\{follower}" if follower else "a lone backslash"
                )
        elif char == "%":
            letter = template[at + 1 : at + 2]
            if not letter:
                raise _fail(template, at, "a lone percent sign (write %% for one)")
            at += 2
            if letter in "%{}":
                literal += letter.encode()
                continue
            literal_ends()
            modifier = None
            if template[at : at + 1] == "{":
                end = _end_of_modifier(template, at)
                modifier = template[at + 1 : end]
                at = end + 1
            parts.append(Field(letter, modifier))
        else:
            literal += char.encode("utf-8", "surrogateescape")
            at += 1
    literal_ends()
    return parts


def split_modifier(modifier: str) -> tuple[str, str | None]:
    """``strftime[%F]`` as ``("strftime", "%F")``; a modifier without text of its own as ``(name, None)``."""
    match = _WORD.fullmatch(modifier)
    if match is None:
        return modifier, None
    name, rest = match.groups()
    if not rest:
        return name, None
    opener = rest[0]
    count = len(rest) - len(rest.lstrip(opener))
    closer = _CLOSERS.get(opener, "")
    if count == len(rest):
        # Nothing but #: two runs of equal length around an empty text.
        count //= 2
    if not closer or not rest.endswith(closer * count) or len(rest) < 2 * count:
        raise FormatError(f"the modifier {{{modifier}}} is not {name}[…]")
    return name, rest[count : len(rest) - count]
