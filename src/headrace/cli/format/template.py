"""Splits a percent format into literal bytes and fields. A field can have a modifier in braces.

\\t \\n \\r \\\\ \\xNN      the usual characters, or any byte
%% %{ %}              a percent sign, a brace
%v  %v{hex}           a field by its letter, with or without a modifier
%d{strftime[%F]}      a modifier's argument, in any number of [], {}, () or ##
%h{%k=%v }            a nested format, applied to each header
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.cli.errors import UsageError

__all__ = ["Field", "FormatError", "Part", "split_format", "split_modifier"]

_BACKSLASH = {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\", "0": b"\0"}
_CLOSERS = {"[": "]", "{": "}", "(": ")", "#": "#"}
_MODIFIER = re.compile(r"([a-z][a-z0-9-]*)(.*)", re.DOTALL)


class FormatError(UsageError):
    code = "HR-CLI-FORMAT"


@dataclass(frozen=True, slots=True)
class Field:
    letter: str
    modifier: str | None = None


Part = bytes | Field


def _error(template: str, index: int, what: str) -> FormatError:
    return FormatError(
        f"the format {template!r} has {what} at character {index + 1}",
        hint=r"fields are %t %k %v %h{…} %p %o %d …, %% is a percent sign; see headrace consume --help",
    )


def _end_of_modifier(template: str, opening: int) -> int:
    """Return the index of the brace that closes the brace at ``opening``. ``%{`` and ``%}`` are literal characters."""
    depth = 0
    index = opening
    while index < len(template):
        char = template[index]
        if char in "%\\":
            index += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if not depth:
                return index
        index += 1
    raise _error(template, opening, "a brace that is never closed")


def split_format(template: str) -> list[Part]:
    parts: list[Part] = []
    literal = bytearray()
    index = 0

    def end_literal() -> None:
        if literal:
            parts.append(bytes(literal))
            literal.clear()

    while index < len(template):
        char = template[index]
        if char == "\\":
            escape = template[index + 1 : index + 2]
            if escape == "x":
                digits = template[index + 2 : index + 4]
                if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                    raise _error(template, index, r"\x without two hexadecimal digits")
                literal.append(int(digits, 16))
                index += 4
            elif escape in _BACKSLASH:
                literal += _BACKSLASH[escape]
                index += 2
            else:
                raise _error(
                    template, index, f"the unknown escape \\{escape}" if escape else "a lone backslash"
                )
        elif char == "%":
            letter = template[index + 1 : index + 2]
            if not letter:
                raise _error(template, index, "a lone percent sign (write %% for a literal percent sign)")
            index += 2
            if letter in "%{}":
                literal += letter.encode()
                continue
            end_literal()
            modifier = None
            if template[index : index + 1] == "{":
                end = _end_of_modifier(template, index)
                modifier = template[index + 1 : end]
                index = end + 1
            parts.append(Field(letter, modifier))
        else:
            literal += char.encode("utf-8", "surrogateescape")
            index += 1
    end_literal()
    return parts


def split_modifier(modifier: str) -> tuple[str, str | None]:
    """Split ``strftime[%F]`` into ``("strftime", "%F")``, and a modifier without an argument into ``(name, None)``."""
    match = _MODIFIER.fullmatch(modifier)
    if match is None:
        return modifier, None
    name, rest = match.groups()
    if not rest:
        return name, None
    opener = rest[0]
    count = len(rest) - len(rest.lstrip(opener))
    closer = _CLOSERS.get(opener, "")
    if count == len(rest):
        # The text has only # characters: two delimiters of equal length around an empty argument.
        count //= 2
    if not closer or not rest.endswith(closer * count) or len(rest) < 2 * count:
        raise FormatError(f"the modifier {{{modifier}}} is not {name}[…]")
    return name, rest[count : len(rest) - count]
