"""Poison values that are derived from good values: one function per kind, and mixtures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["KINDS", "PoisonMaker"]

_DEEPEST_LEVELS = 100_000
_DIGITS_MAX = 5_000
_NOT_UTF8 = (b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\xfe\xff")
_LONE_SURROGATES = (r"\ud800", r"\udfff", r"\udc00\ud800", r"\uD83Dx", r"x\uDE00", r"\ud83d\u0041")
_EDGE_INTEGERS = (2**63, -(2**63) - 1, 2**63 - 1, -(2**63), 2**64, 2**53 + 1, 10**19, -(10**30))
_INVALID_NUMBERS = ("NaN", "Infinity", "-Infinity", "nan", "+1", "01", "1.", ".5", "0x10", "1e", "1_000", "-")
_FLOATS = (
    '"NaN"',
    '"Infinity"',
    '"-Infinity"',
    "1e400",
    "-1e400",
    "1e-400",
    "-0.0",
    "5e-324",
    "1.7976931348623157e308",
)
_TRAILING_JUNK = (b" x", b"{}", b"}", b"]", b",", b" null", b"\x00", b"//", b"\n{}", b'"', b",{}", b" ]}")
_OTHER_TYPES = (
    '"5"',
    "5",
    "1.5",
    "true",
    "null",
    "{}",
    "[]",
    '"x"',
    '["a"]',
    "[1]",
    '{"a":1}',
    '{"number":1}',
    '""',
    "[null]",
)
_DECIMALS = (
    "1e3",
    "1E-3",
    "1.1234567",
    "123456789012.123456",
    "1234567890123",
    '"1.5"',
    '"1_0"',
    '" 1"',
    '"1e2"',
    "-0",
    "1.500000000",
)
_TIMES = (
    *("2026-01-31T12:00:00.5+02:00", "2026-01-31T12:00:00", "2026-01-31", "1700000000", "now"),
    *("2026-02-30T12:00:00Z", "2026-01-31T24:00:00Z", "2026-01-31T12:00:60Z", "2026-01-31 12:00:00Z"),
    "2026-01-31T12:00:00.123456789Z",
)
_BASE64 = ("AQI=", "AQI", "!!", "AR==", "_-8=", "AQI=\\n", "")
_NAMES = ("id", "text", "whole", "number", "truth", "exact", "at", "raw", "texts", "counts", "part")


class PoisonMaker:
    """Creates one value after another. Each value has its own ``id``, unless the mutation removes it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def value(self) -> tuple[str, bytes | None]:
        """Return the kind and the bytes of the next value."""
        kind = self._rng.choice(list(KINDS))
        self._count += 1
        return kind, KINDS[kind](self)

    def fields(self) -> dict[str, str]:
        """Return the fields of a valid value as JSON texts by field name. Some fields are omitted."""
        rng = self._rng
        texts: dict[str, Any] = {
            "text": rng.choice(("", "a", 'é"\\ {[,:', "€ 😀", "x" * 300, "\t\n", "[" * 250)),
            "whole": rng.choice((0, -1, 2**63 - 1, -(2**63), rng.randrange(10**9))),
            "number": rng.choice(
                (0.1, -1e300, 5e-324, rng.random(), rng.randrange(10**6), "NaN", "-Infinity")
            ),
            "truth": rng.random() < 0.5,
            "exact": rng.choice((0.5, 12, 1.25, -3)),
            "at": f"2026-0{rng.randint(1, 9)}-1{rng.randrange(10)}T12:00:00.{rng.randrange(10**6):06}Z",
            "raw": rng.choice(("", "AQI=", "AP8=")),
            "texts": [rng.choice(("a", "", "ü"))] * rng.randrange(3),
            "counts": {f"k{at}": at for at in range(rng.randrange(4))},
            "part": {"number": rng.randrange(9), "name": rng.choice((None, "n"))},
        }
        present = {name: text for name, text in texts.items() if rng.random() < 0.7}
        compact = rng.random() < 0.5
        samples = {
            name: json.dumps(
                text, ensure_ascii=rng.random() < 0.3, separators=(",", ":") if compact else None
            )
            for name, text in present.items()
        }
        return {"id": json.dumps(f"c{self._count}"), **samples}

    def to_json(self, fields: dict[str, str], *extra_fields: str) -> bytes:
        parts = [f"{json.dumps(name)}:{text}" for name, text in fields.items()]
        parts += extra_fields
        if self._rng.random() < 0.3:
            self._rng.shuffle(parts)
        joined = self._rng.choice((",", ",", ", ", " ,\n"))
        return f"{{{joined.join(parts)}}}".encode()

    # Kinds

    def good(self) -> bytes:
        return self.to_json(self.fields())

    def _with(self, name: str, text: str) -> bytes:
        return self.to_json({**self.fields(), name: text})

    def deep(self) -> bytes:
        # Only a few values have the greatest depth, because each of these has 200 KB.
        levels = (
            _DEEPEST_LEVELS
            if self._rng.random() < 0.1
            else self._rng.choice((198, 199, 200, 201, 999, 1_001, 3_000))
        )
        opening, closing = self._rng.choice((("[", "]"), ('{"a":', "}")))
        innermost = "" if opening == "[" else "1"
        return self._with(
            self._rng.choice(("other", "texts", "part", "text")),
            opening * levels + innermost + closing * levels,
        )

    def digits(self) -> bytes:
        digits = self._rng.choice("123456789") * self._rng.choice((_DIGITS_MAX, 1_001, 1_000, 400, 40))
        text = self._rng.choice((digits, f"-{digits}", f"0.{digits}", f"1e{digits}", f'"{digits}"'))
        return self._with(self._rng.choice(("whole", "number", "exact", "other", "text")), text)

    def edge(self) -> bytes:
        text = str(self._rng.choice(_EDGE_INTEGERS))
        match self._rng.randrange(4):
            case 0:
                return self._with("counts", f'{{"a":{text}}}')
            case 1:
                return self._with("part", f'{{"number":{text}}}')
            case _:
                return self._with(self._rng.choice(("whole", "number", "exact", "other")), text)

    def invalid_number(self) -> bytes:
        text = self._rng.choice(_INVALID_NUMBERS)
        return self._with(self._rng.choice(("whole", "number", "exact", "other")), text)

    def floats(self) -> bytes:
        return self._with(self._rng.choice(("number", "number", "whole", "text")), self._rng.choice(_FLOATS))

    def not_utf8(self) -> bytes:
        value = self.good()
        at = self._rng.randrange(len(value) + 1)
        return value[:at] + self._rng.choice(_NOT_UTF8) + value[at:]

    def lone_surrogate(self) -> bytes:
        surrogate = (
            self._rng.choice(_LONE_SURROGATES)
            if self._rng.random() < 0.7
            else self._rng.choice((r"\ud83d\ude00", r"\\ud800"))
        )
        match self._rng.randrange(4):
            case 0:
                return self._with("counts", f'{{"{surrogate}":1}}')
            case 1:
                return self.to_json(self.fields(), f'"{surrogate}":1')
            case 2:
                return self._with("texts", f'["a","{surrogate}"]')
            case _:
                return self._with(self._rng.choice(("text", "id", "other")), f'"{surrogate}"')

    def nul(self) -> bytes:
        text = self._rng.choice(('"a\\u0000b"', '"\\u0000"', '"a\x00b"', "\x00", '"a\\u0000'))
        return self._with(self._rng.choice(("text", "id", "other", "raw", "at")), text)

    def duplicate_names(self) -> bytes:
        fields, rng = self.fields(), self._rng
        match rng.randrange(6):
            case 0:
                return self.to_json(fields, f'"id":"other{self._count}"')
            case 1:
                return self.to_json(fields, f'"\\u0069d":"other{self._count}"')
            case 2:
                return self.to_json({**fields, "part": '{"number":1,"number":2}'})
            case 3:
                return self.to_json({**fields, "counts": '{"a":1,"b":2,"a":1}'})
            case 4:
                return self.to_json(fields, '"other":{"a":{"b":1,"b":1}}')
            case _:
                name = rng.choice(list(fields))
                return self.to_json(fields, f'"{name}" : {fields[name]}')

    def wrong_type(self) -> bytes:
        return self._with(self._rng.choice(_NAMES), self._rng.choice(_OTHER_TYPES))

    def unusual_text(self) -> bytes:
        match self._rng.randrange(3):
            case 0:
                return self._with("exact", self._rng.choice(_DECIMALS))
            case 1:
                return self._with("at", f'"{self._rng.choice(_TIMES)}"')
            case _:
                return self._with("raw", f'"{self._rng.choice(_BASE64)}"')

    def junk(self) -> bytes:
        junk = self._rng.choice(_TRAILING_JUNK)
        return self.good() + junk if self._rng.random() < 0.8 else junk + self.good()

    def not_an_object(self) -> bytes | None:
        return self._rng.choice(
            (None, b"", b" ", b"null", b"5", b"[]", b'"x"', b"{}", b"\xef\xbb\xbf" + self.good())
        )

    def corrupted_bytes(self) -> bytes:
        """Return a valid or poison value in which bytes were lost, duplicated, swapped or changed."""
        rng = self._rng
        value = bytearray(
            self._rng.choice(
                (
                    PoisonMaker.good,
                    PoisonMaker.edge,
                    PoisonMaker.duplicate_names,
                    PoisonMaker.lone_surrogate,
                    PoisonMaker.unusual_text,
                )
            )(self)
        )
        for _ in range(rng.randint(1, 3)):
            at, length = rng.randrange(len(value) + 1), rng.randint(1, 9)
            match rng.randrange(5):
                case 0:
                    value[at:at] = rng.choice((*b'{}[]":,0 \\ne1.-u', rng.randrange(256))).to_bytes(1, "big")
                case 1:
                    del value[at : at + rng.choice((1, length))]
                case 2:
                    value[at:at] = value[at : at + length]
                case 3 if at < len(value):
                    value[at] ^= 1 << rng.randrange(8)
                case _:
                    parts = bytes(value).split(b",")
                    rng.shuffle(parts)
                    value = bytearray(b",".join(parts))
        return bytes(value)


KINDS: dict[str, Callable[[PoisonMaker], bytes | None]] = {
    "good": PoisonMaker.good,
    "nested deeply": PoisonMaker.deep,
    "many digits": PoisonMaker.digits,
    "beyond 64 bits": PoisonMaker.edge,
    "invalid number": PoisonMaker.invalid_number,
    "special floats": PoisonMaker.floats,
    "not UTF-8": PoisonMaker.not_utf8,
    "lone surrogate": PoisonMaker.lone_surrogate,
    "NUL": PoisonMaker.nul,
    "duplicate names": PoisonMaker.duplicate_names,
    "wrong type": PoisonMaker.wrong_type,
    "unusual text": PoisonMaker.unusual_text,
    "trailing junk": PoisonMaker.junk,
    "not an object": PoisonMaker.not_an_object,
    # Two entries double the probability of this kind.
    "corrupted bytes": PoisonMaker.corrupted_bytes,
    "corrupted bytes (second share)": PoisonMaker.corrupted_bytes,
}
