"""Text fields (topic, key, value, header): as they are, hexadecimal, base64, JSON, unpacked numbers."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable

from headrace.cli.errors import CliError
from headrace.cli.format.template import FormatError, split_modifier

__all__ = ["InputError", "text_decoder", "text_printer"]

_UNPACK_TYPES = frozenset("bBhHiIqQ")


class InputError(CliError):
    """Input that does not match the format it is read with."""

    code = "HR-CLI-INPUT"


def _as_json(text: bytes) -> bytes:
    """JSON stays JSON, in compact form; anything else becomes a JSON string."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False).encode()


def _unpacker(layout: str) -> Callable[[bytes], bytes]:
    """Numbers and characters out of binary text; what does not fit is said in the output, as rpk does."""
    for char in layout:
        if char not in _UNPACK_TYPES and char not in "<>x.cs$ ":
            raise FormatError(
                f"unpack[{layout}] has the unknown letter {char!r}", hint="use < > x b B h H i I q Q c . s $"
            )

    def unpack(text: bytes) -> bytes:
        out = bytearray()
        order = ">"
        at = 0
        for char in layout:
            if char in "<>":
                order = char
            elif char in "x ":
                out += b" "
            elif char == "$":
                if at < len(text):
                    out += b"(%d bytes left)" % (len(text) - at)
            elif char == "s":
                out += text[at:]
                at = len(text)
            else:
                kind = "c" if char in "c." else char
                size = struct.calcsize(order + kind)
                if at + size > len(text):
                    return bytes(out + b"(%d bytes short)" % (at + size - len(text)))
                (value,) = struct.unpack_from(order + kind, text, at)
                out += value if isinstance(value, bytes) else str(value).encode()
                at += size
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
        f"{{{modifier}}} is no form for text", hint="there are: hex, base64, base64raw, json, unpack[…]"
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
    """The way back, for ``produce``."""
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
        f"{{{modifier}}} is no form for text that is read", hint="there are: hex, base64, base64raw, json"
    )
