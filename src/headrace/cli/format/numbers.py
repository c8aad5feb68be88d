"""Numbers in formats: as decimal digits, hexadecimal digits, or bytes in either order.

Printing takes the low bits that fit, as rpk does: a length of 256 printed as ``{byte}`` is a zero byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headrace.cli.format.template import FormatError

__all__ = ["NumberForm", "number_form", "number_printer"]

_HEX_DIGITS = {"hex64": 16, "hex32": 8, "hex16": 4, "hex8": 2, "hex4": 1}
_BYTES = {"64": 8, "32": 4, "16": 2, "8": 1}
_NAMES = "ascii, hex64 to hex4, big64 to big8, little64 to little8, byte, bool"


@dataclass(frozen=True, slots=True)
class NumberForm:
    """``size`` is in characters for hex and in bytes for big and little; digits and bool have none."""

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
    raise FormatError(f"{{{modifier}}} is no form for a number", hint=f"there are: {_NAMES}")


def number_printer(modifier: str | None) -> Callable[[int], bytes]:
    return number_form(modifier).write
