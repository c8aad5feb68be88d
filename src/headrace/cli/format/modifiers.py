"""Modifiers of format fields: how ``%p{hex8}``, ``%v{base64}`` and ``%d{strftime[%F]}`` print and parse a value.

Numbers are decimal digits, hexadecimal digits, or bytes in either byte order. A number that is too large is cut to its
low bits, as in rpk: 256 as ``{byte}`` is a zero byte. Text (topic, key, value, header) is printed unchanged or as
hexadecimal digits, base64, JSON or unpacked numbers. Timestamps are milliseconds, or follow a pattern of strftime or
Go, always in UTC.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from headrace.cli.errors import CliError
from headrace.cli.format.template import FormatError, split_modifier

__all__ = ["InputError", "NumberForm", "number_form", "text_decoder", "text_printer", "timestamp_printer"]

# Numbers

_HEX_DIGITS = {"hex64": 16, "hex32": 8, "hex16": 4, "hex8": 2, "hex4": 1}
_BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}
_NUMBER_MODIFIERS = "ascii, hex64 to hex4, big64 to big8, little64 to little8, byte, bool"


@dataclass(frozen=True, slots=True)
class NumberForm:
    """``size`` is in characters for hex, and in bytes for big and little; digits and bool ignore it."""

    kind: Literal["digits", "hex", "big", "little", "bool"]
    size: int = 0

    def write(self, number: int) -> bytes:
        match self.kind:
            case "digits":
                return str(number).encode()
            case "bool":
                return b"true" if number else b"false"
            case "hex":
                return f"{number & (16**self.size - 1):0{self.size}x}".encode()
            case "big" | "little":
                low: int = number & (256**self.size - 1)
                return low.to_bytes(self.size, self.kind)


def number_form(modifier: str | None) -> NumberForm:
    if modifier in (None, "", "ascii", "number", "decimal"):
        return NumberForm("digits")
    if modifier == "bool":
        return NumberForm("bool")
    if modifier == "byte":
        return NumberForm("big", 1)
    if modifier in _HEX_DIGITS:
        return NumberForm("hex", _HEX_DIGITS[modifier])
    for order in ("big", "little"):
        size = _BYTES.get(modifier.removeprefix(order)) if modifier.startswith(order) else None
        if size:
            return NumberForm("big" if order == "big" else "little", size)
    raise FormatError(f"{{{modifier}}} is not a number modifier", hint=f"use one of: {_NUMBER_MODIFIERS}")


# Text

_UNPACK_TYPES = frozenset("bBhHiIqQ")


class InputError(CliError):
    """Input that does not match its format."""

    code = "HR-CLI-INPUT"


def _as_json(text: bytes) -> bytes:
    """Print JSON in compact form, and any other text as a JSON string."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False).encode()


def _unpacker(layout: str) -> Callable[[bytes], bytes]:
    """Unpack numbers and characters from bytes. The output reports missing or extra bytes, as in rpk."""
    for char in layout:
        if char not in _UNPACK_TYPES and char not in "<>x.cs$ ":
            raise FormatError(
                f"unpack[{layout}] has the unknown letter {char!r}", hint="use < > x b B h H i I q Q c . s $"
            )

    def unpack(text: bytes) -> bytes:
        out = bytearray()
        order = ">"
        position = 0
        for char in layout:
            if char in "<>":
                order = char
            elif char in "x ":
                out += b" "
            elif char == "$":
                if position < len(text):
                    out += b"(%d bytes left)" % (len(text) - position)
            elif char == "s":
                out += text[position:]
                position = len(text)
            else:
                kind = "c" if char in "c." else char
                size = struct.calcsize(order + kind)
                if position + size > len(text):
                    return bytes(out + b"(%d bytes short)" % (position + size - len(text)))
                (value,) = struct.unpack_from(order + kind, text, position)
                out += value if isinstance(value, bytes) else str(value).encode()
                position += size
        return bytes(out)

    return unpack


def text_printer(modifier: str | None) -> Callable[[bytes], bytes]:
    name, argument = split_modifier(modifier) if modifier else ("", None)
    match name, argument:
        case "", None:
            return bytes
        case "hex", None:
            return binascii.hexlify
        case "base64", None:
            return base64.b64encode
        case "base64raw", None:
            return lambda text: base64.b64encode(text).rstrip(b"=")
        case "json", None:
            return _as_json
        case "unpack", str(layout):
            return _unpacker(layout)
    raise FormatError(
        f"{{{modifier}}} is not a text modifier", hint="use one of: hex, base64, base64raw, json, unpack[…]"
    )


def _from_hex(text: bytes) -> bytes:
    try:
        return binascii.unhexlify(text)
    except binascii.Error as error:
        raise InputError(f"{text[:40]!r} is not hexadecimal: {error}") from None


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise InputError(f"{text[:40]!r} is not base64: {error}") from None


def _from_json(text: bytes) -> bytes:
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{text[:40]!r} is not JSON: {error}") from None


def text_decoder(modifier: str | None) -> Callable[[bytes], bytes]:
    """The inverse of ``text_printer``, for ``produce``."""
    match modifier:
        case None | "":
            return bytes
        case "hex":
            return _from_hex
        case "base64" | "base64raw":
            return _from_base64
        case "json":
            return _from_json
    raise FormatError(
        f"{{{modifier}}} is not a text modifier for input", hint="use one of: hex, base64, base64raw, json"
    )


# Timestamps

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A Go layout is the time 2006-01-02 15:04:05 in the wanted form. Longer pieces come first, because a shorter piece can
# be a part of a longer piece.
_GO_TO_STRFTIME = {
    "January": "%B",
    "Monday": "%A",
    "2006": "%Y",
    "Z07:00": "Z",
    "-07:00": "+00:00",
    "Z0700": "Z",
    "-0700": "+0000",
    "Jan": "%b",
    "Mon": "%a",
    "MST": "UTC",
    "01": "%m",
    "02": "%d",
    "_2": "%e",
    "15": "%H",
    "03": "%I",
    "04": "%M",
    "05": "%S",
    "06": "%y",
    "PM": "%p",
    "pm": "%P",
    "1": "%-m",
    "2": "%-d",
    "3": "%-I",
    "4": "%-M",
    "5": "%-S",
}
_GO_PIECE = re.compile("|".join([r"[.,][09]{1,9}(?!\d)", *map(re.escape, _GO_TO_STRFTIME), "%"]))


def _utc(ms: int) -> datetime | None:
    """Return None if the timestamp is missing (negative) or after the year 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=ms) if ms >= 0 else None
    except OverflowError:
        return None


def _strftime(pattern: str) -> Callable[[int], bytes]:
    def write(ms: int) -> bytes:
        time_utc = _utc(ms)
        return (
            str(ms).encode()
            if time_utc is None
            else time_utc.strftime(pattern).encode("utf-8", "surrogateescape")
        )

    return write


def _go(layout: str) -> Callable[[int], bytes]:
    def write(ms: int) -> bytes:
        time_utc = _utc(ms)
        if time_utc is None:
            return str(ms).encode()

        def piece(match: re.Match[str]) -> str:
            text = match[0]
            if text[0] in ".,":
                fraction = f"{time_utc.microsecond:06d}000"[: len(text) - 1]
                # In Go, a fraction of nines drops trailing zeros, and a fraction of zeros prints them.
                fraction = fraction.rstrip("0") if text[1] == "9" else fraction
                return text[0] + fraction if fraction else ""
            return "%" if text == "%" else time_utc.strftime(_GO_TO_STRFTIME[text])

        return _GO_PIECE.sub(piece, layout).encode("utf-8", "surrogateescape")

    return write


def timestamp_printer(modifier: str | None) -> Callable[[int], bytes]:
    name, argument = split_modifier(modifier) if modifier else ("", None)
    match name, argument:
        case "strftime", str(pattern):
            return _strftime(pattern)
        case "go", str(layout):
            return _go(layout)
        case "unix", None:
            return lambda ms: str(ms // 1_000).encode()
        case "iso", None:
            return _go("2006-01-02T15:04:05.000Z07:00")
        case "strftime" | "go", None:
            raise FormatError(f"{{{name}}} needs a pattern in brackets", hint="e.g. %d{strftime[%F %T]}")
    return number_form(modifier).write
