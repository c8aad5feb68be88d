"""A value's text as it is usually written, as one regular expression: what matches is known to be read as it stands.

Fields come in the order of the schema, each at most once, each with a value of its own kind; there is nothing before
and nothing behind. So a match excludes all that Spark's parser would let pass in silence. It says nothing against a
value that does not match: that one is looked at with care (``headrace.flow.careful``).

Every repetition is possessive. In Java such a one is a loop, where others recurse until the stack is full.
"""

from __future__ import annotations

import json
import re

from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record

__all__ = ["BASE64", "DATE", "TIME", "canonical"]

TIME = (
    r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00)"
)
DATE = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
BASE64 = (
    r"(?:[A-Za-z0-9+/]{4})*+"
    r"(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?+"
)
# Without escapes by number, which may be half of a pair.
_TEXT = r'"(?:[^"\\]++|\\[^u])*+"'
_PLAIN = {
    "text": _TEXT,
    # Of 18 digits at most, which always fit.
    "int": r"-?[0-9]{1,18}",
    # Far from the longest that a number may be.
    "float": r'(?:-?[0-9]{1,18}+(?:\.[0-9]{1,500}+)?+(?:[eE][+-]?[0-9]{1,2})?+|"NaN"|"-?Infinity")',
    "bool": "(?:true|false)",
    # In another offset the year may become one that does not exist.
    "time": TIME.rpartition("(?:Z|")[0].join(('"', 'Z"')),
    "date": f'"{DATE}"',
    "bytes": f'"{BASE64}"',
}
_NOTHING = "(?!)"


def canonical(fields: tuple[Field, ...]) -> str:
    """For a whole value; Java's notation."""
    return rf"\A{_record(fields)}\z"


def _record(fields: tuple[Field, ...]) -> str:
    first, *others = (f"{_quoted(one.name)}: ?+{_nullable(one.kind, one.optional)}" for one in fields)
    rest = (
        rf"(?:, ?+{text})" + ("?+" if one.optional else "")
        for text, one in zip(others, fields[1:], strict=True)
    )
    return rf"\{{{first}{''.join(rest)}\}}"


def _quoted(text: str) -> str:
    """As it is written if there is but one way to write it; otherwise something that matches nothing."""
    written = json.dumps(text, ensure_ascii=False)
    return re.escape(written) if written == f'"{text}"' else _NOTHING


def _nullable(kind: Kind, optional: bool) -> str:
    return f"(?:null|{_value(kind)})" if optional else _value(kind)


def _value(kind: Kind) -> str:
    match kind:
        case Plain(name):
            return _PLAIN[name]
        case Digits(precision, scale):
            whole = precision - scale
            before = rf"(?:0|[1-9][0-9]{{0,{whole - 1}}}+)" if whole else "0"
            return f"-?{before}" + (rf"(?:\.[0-9]{{1,{scale}}}+)?+" if scale else "")
        case Choice(values):
            return f"(?:{'|'.join(map(_quoted, values))})"
        case Many(of, optional):
            one = _nullable(of, optional)
            return rf"\[(?:{one}(?:, ?+{one})*+)?+\]"
        case Named(of, optional):
            # Of two keys nobody knows by looking whether they are one.
            return rf"\{{(?:{_TEXT}: ?+{_nullable(of, optional)})?+\}}"
        case Record(fields):
            return _record(fields)
