"""Values that harm whoever reads them carelessly, made from good ones: each kind that is listed, and mixtures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["KINDS", "Maker"]

_DEEP = 100_000
_DIGITS = 5_000
_NOT_UTF8 = (b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\xfe\xff")
_HALVES = (r"\ud800", r"\udfff", r"\udc00\ud800", r"\uD83Dx", r"x\uDE00", r"\ud83d\u0041")
_EDGES = (2**63, -(2**63) - 1, 2**63 - 1, -(2**63), 2**64, 2**53 + 1, 10**19, -(10**30))
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "nan", "+1", "01", "1.", ".5", "0x10", "1e", "1_000", "-")
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
_JUNK = (b" x", b"{}", b"}", b"]", b",", b" null", b"\x00", b"//", b"\n{}", b'"', b",{}", b" ]}")
_OTHER = (
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
_EXACT = (
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


class Maker:
    """One value after another; every one has an ``id`` of its own, unless what is done to it takes that away."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._made = 0

    def value(self) -> tuple[str, bytes | None]:
        """The kind, and the bytes."""
        kind = self._rng.choice(list(KINDS))
        self._made += 1
        return kind, KINDS[kind](self)

    def fields(self) -> dict[str, str]:
        """A good value: JSON by the name of its field, some of them left out."""
        rng = self._rng
        told: dict[str, Any] = {
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
        chosen = {name: one for name, one in told.items() if rng.random() < 0.7}
        compact = rng.random() < 0.5
        made = {
            name: json.dumps(one, ensure_ascii=rng.random() < 0.3, separators=(",", ":") if compact else None)
            for name, one in chosen.items()
        }
        return {"id": json.dumps(f"c{self._made}"), **made}

    def written(self, fields: dict[str, str], *more: str) -> bytes:
        parts = [f"{json.dumps(name)}:{one}" for name, one in fields.items()]
        parts += more
        if self._rng.random() < 0.3:
            self._rng.shuffle(parts)
        joined = self._rng.choice((",", ",", ", ", " ,\n"))
        return f"{{{joined.join(parts)}}}".encode()

    # Kinds

    def good(self) -> bytes:
        return self.written(self.fields())

    def _with(self, name: str, told: str) -> bytes:
        return self.written({**self.fields(), name: told})

    def deep(self) -> bytes:
        # The deepest ones are few, since each has a fifth of a megabyte.
        levels = (
            _DEEP if self._rng.random() < 0.1 else self._rng.choice((198, 199, 200, 201, 999, 1_001, 3_000))
        )
        opened, closed = self._rng.choice((("[", "]"), ('{"a":', "}")))
        inside = "" if opened == "[" else "1"
        return self._with(
            self._rng.choice(("other", "texts", "part", "text")), opened * levels + inside + closed * levels
        )

    def digits(self) -> bytes:
        many = self._rng.choice("123456789") * self._rng.choice((_DIGITS, 1_001, 1_000, 400, 40))
        told = self._rng.choice((many, f"-{many}", f"0.{many}", f"1e{many}", f'"{many}"'))
        return self._with(self._rng.choice(("whole", "number", "exact", "other", "text")), told)

    def edge(self) -> bytes:
        told = str(self._rng.choice(_EDGES))
        match self._rng.randrange(4):
            case 0:
                return self._with("counts", f'{{"a":{told}}}')
            case 1:
                return self._with("part", f'{{"number":{told}}}')
            case _:
                return self._with(self._rng.choice(("whole", "number", "exact", "other")), told)

    def no_number(self) -> bytes:
        told = self._rng.choice(_NO_NUMBERS)
        return self._with(self._rng.choice(("whole", "number", "exact", "other")), told)

    def floats(self) -> bytes:
        return self._with(self._rng.choice(("number", "number", "whole", "text")), self._rng.choice(_FLOATS))

    def not_utf8(self) -> bytes:
        value = self.good()
        at = self._rng.randrange(len(value) + 1)
        return value[:at] + self._rng.choice(_NOT_UTF8) + value[at:]

    def half_pair(self) -> bytes:
        half = (
            self._rng.choice(_HALVES)
            if self._rng.random() < 0.7
            else self._rng.choice((r"\ud83d\ude00", r"\\ud800"))
        )
        match self._rng.randrange(4):
            case 0:
                return self._with("counts", f'{{"{half}":1}}')
            case 1:
                return self.written(self.fields(), f'"{half}":1')
            case 2:
                return self._with("texts", f'["a","{half}"]')
            case _:
                return self._with(self._rng.choice(("text", "id", "other")), f'"{half}"')

    def nul(self) -> bytes:
        told = self._rng.choice(('"a\\u0000b"', '"\\u0000"', '"a\x00b"', "\x00", '"a\\u0000'))
        return self._with(self._rng.choice(("text", "id", "other", "raw", "at")), told)

    def twins(self) -> bytes:
        fields, rng = self.fields(), self._rng
        match rng.randrange(6):
            case 0:
                return self.written(fields, f'"id":"other{self._made}"')
            case 1:
                return self.written(fields, f'"\\u0069d":"other{self._made}"')
            case 2:
                return self.written({**fields, "part": '{"number":1,"number":2}'})
            case 3:
                return self.written({**fields, "counts": '{"a":1,"b":2,"a":1}'})
            case 4:
                return self.written(fields, '"other":{"a":{"b":1,"b":1}}')
            case _:
                name = rng.choice(list(fields))
                return self.written(fields, f'"{name}" : {fields[name]}')

    def wrong_type(self) -> bytes:
        return self._with(self._rng.choice(_NAMES), self._rng.choice(_OTHER))

    def odd_text(self) -> bytes:
        match self._rng.randrange(3):
            case 0:
                return self._with("exact", self._rng.choice(_EXACT))
            case 1:
                return self._with("at", f'"{self._rng.choice(_TIMES)}"')
            case _:
                return self._with("raw", f'"{self._rng.choice(_BASE64)}"')

    def junk(self) -> bytes:
        junk = self._rng.choice(_JUNK)
        return self.good() + junk if self._rng.random() < 0.8 else junk + self.good()

    def no_object(self) -> bytes | None:
        return self._rng.choice(
            (None, b"", b" ", b"null", b"5", b"[]", b'"x"', b"{}", b"\xef\xbb\xbf" + self.good())
        )

    def mixed(self) -> bytes:
        """Whatever comes of a value when bytes of it are lost, doubled, swapped or changed."""
        rng = self._rng
        value = bytearray(
            self._rng.choice((Maker.good, Maker.edge, Maker.twins, Maker.half_pair, Maker.odd_text))(self)
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


KINDS: dict[str, Callable[[Maker], bytes | None]] = {
    "good": Maker.good,
    "nested deeply": Maker.deep,
    "many digits": Maker.digits,
    "beyond 64 bits": Maker.edge,
    "no number": Maker.no_number,
    "NaN and beyond": Maker.floats,
    "not UTF-8": Maker.not_utf8,
    "lone surrogate": Maker.half_pair,
    "NUL": Maker.nul,
    "twin keys": Maker.twins,
    "wrong type": Maker.wrong_type,
    "odd text": Maker.odd_text,
    "trailing junk": Maker.junk,
    "no object": Maker.no_object,
    "mixed": Maker.mixed,
    "mixed again": Maker.mixed,
}
