"""Alert rules: ``lag > 10_000 for 30s on flow price``.

rule       filter ["for" duration] ["on" subject]
filter     a filter of headrace.model.filter; its columns are the measures, its tests are <, <=, > and >=
measure    lag                  records not yet read
           gone                 records that were deleted before they were read
           dead                 open dead letters
           bytes                estimated bytes not yet read
           age                  age of the oldest record not yet read
           time_to_loss         time until retention deletes that record, at the present rates; also "time to loss"
value      10_000, 64MiB, 30s, 10m, 1h, 7d; for time_to_loss also a share of the retention time: 25%
subject    flow NAME, view NAME, group NAME, flows, views, groups
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.model.filter import Filter, FilterInvalid, Operand, Test, fold, parse_filter

__all__ = [
    "MEASURES",
    "SHARE",
    "Condition",
    "InvalidRule",
    "Rule",
    "Subject",
    "parse_rule",
    "parse_subject",
]

MEASURES = ("lag", "bytes", "age", "time_to_loss", "gone", "dead")
SHARE = "time_to_loss_share"
"""The measure that a percentage is compared with: time to loss divided by the retention time."""

_COUNTS = ("lag", "gone", "dead")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TIME_TO_LOSS = re.compile(r"\btime\s+to\s+loss\b", re.IGNORECASE)
_FOR = re.compile(r"\sfor(?=\s|$)")
_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)([A-Za-z%]*)")
_KINDS = ("flow", "view", "group")
_EXAMPLE = "write it as: lag > 10_000 for 30s, time_to_loss < 1h, dead > 0"


class InvalidRule(HeadraceError):
    code = "HR-ALERT-RULE"


@dataclass(frozen=True, slots=True)
class Condition:
    measure: str
    operator: str
    value: float
    is_share: bool = False
    """Whether ``value`` is a share of the retention time."""

    def holds(self, measures: Mapping[str, float | None]) -> bool | None:
        """Return whether the measure fulfils the condition; None if the measure is unknown."""
        value = measures.get(SHARE if self.is_share else self.measure)
        if value is None:
            return None
        match self.operator:
            case "<":
                return value < self.value
            case "<=":
                return value <= self.value
            case ">":
                return value > self.value
            case _:
                return value >= self.value


@dataclass(frozen=True, slots=True)
class Subject:
    """One flow, view or group, or all of one kind. Without kind and name, the subject matches everything."""

    what: str = ""
    name: str = ""

    def matches(self, kind: str, name: str) -> bool:
        return self.what in ("", kind) and self.name in ("", name)


@dataclass(frozen=True, slots=True)
class Rule:
    text: str
    when: Filter
    conditions: tuple[Condition, ...]
    """The tests of ``when``, in the order of the text."""
    for_s: float = 0.0
    """How long the rule must hold before it raises an alert."""
    subject: Subject = Subject()

    def holds(self, measures: Mapping[str, float | None]) -> bool | None:
        """Return whether the measures fulfil the rule; None if the result depends on an unknown measure."""
        conditions = iter(self.conditions)
        return fold(self.when, lambda test: next(conditions).holds(measures), _not, _every, _some)


def _not(part: bool | None) -> bool | None:
    return None if part is None else not part


def _every(parts: tuple[bool | None, ...]) -> bool | None:
    return False if False in parts else None if None in parts else True


def _some(parts: tuple[bool | None, ...]) -> bool | None:
    return True if True in parts else None if None in parts else False


def parse_rule(text: str) -> Rule:
    """Raise ``InvalidRule`` if the text is not a rule. The error quotes the invalid part."""
    body, on, subject_text = _split_subject(text)
    for_s = 0.0
    if (match := _FOR.search(body)) is not None:
        words_after_for, body = body[match.end() :].split(), body[: match.start()]
        for_s = _duration(text, words_after_for[0] if words_after_for else "", "after 'for'")
        if len(words_after_for) > 1:
            raise _invalid(text, f"{words_after_for[1]!r} is unexpected after the duration", _EXAMPLE)
    if not body.strip():
        raise _invalid(text, "the condition is missing", _EXAMPLE)
    try:
        when = parse_filter(_TIME_TO_LOSS.sub("time_to_loss", body))
    except FilterInvalid as error:
        raise _invalid(text, error.message, _EXAMPLE) from None
    conditions: list[Condition] = []
    fold(when, lambda test: conditions.append(_condition(text, test)), _ignore, _ignore, _ignore)
    subject = parse_subject(subject_text, within=text) if on else Subject()
    return Rule(" ".join(text.split()), when, tuple(conditions), for_s, subject)


def _ignore(parts: object) -> None:
    pass


def parse_subject(text: str, *, within: str = "") -> Subject:
    """Parse ``flow price``, ``groups`` and so on. The name of a group may contain blanks."""
    kind, _, name = text.strip().partition(" ")
    if kind in _KINDS and name.strip():
        return Subject(kind, name.strip())
    if kind.removesuffix("s") in _KINDS and kind.endswith("s") and not name:
        return Subject(kind.removesuffix("s"))
    raise _invalid(
        within or text,
        f"{text.strip()!r} is not a subject",
        "expected one of: 'flow NAME', 'view NAME', 'group NAME', 'flows', 'views', 'groups'",
    )


def _split_subject(text: str) -> tuple[str, str, str]:
    match = re.search(r"\son\s", f"{text} ")
    return (text, "", "") if match is None else (text[: match.start()], "on", text[match.end() :])


def _condition(text: str, test: Test) -> Condition:
    measure, operand = test.column, test.operand
    if measure not in MEASURES:
        similar_names = difflib.get_close_matches(measure, MEASURES, n=1)
        hint = f"did you mean {similar_names[0]}?" if similar_names else f"use {', '.join(MEASURES)}"
        raise _invalid(text, f"{measure!r} is not a measure", hint)
    if operand is None or test.operator not in ("<", "<=", ">", ">="):
        raise _invalid(text, f"{measure} cannot be tested with {test.operator!r}", "use <, <=, > or >=")
    return _compare(text, measure, test.operator, operand)


def _compare(text: str, measure: str, operator: str, operand: Operand) -> Condition:
    if measure in _COUNTS:
        return Condition(measure, operator, _count(text, operand.text, measure))
    if measure == "bytes":
        return Condition(measure, operator, _scaled(text, operand.text, _BYTES, "a size like 64MiB or 10GB"))
    if measure == "time_to_loss" and operand.text.endswith("%"):
        share = _scaled(text, operand.text, {"%": 0.01}, "a percentage like 25%")
        return Condition(measure, operator, share, is_share=True)
    return Condition(measure, operator, _duration(text, operand.text, f"for {measure}"))


def _count(text: str, word: str, measure: str) -> float:
    if re.fullmatch(r"[0-9][0-9_]*", word) is None:
        raise _invalid(text, f"{word!r} is not a number of records", f"for example: {measure} > 10_000")
    return float(int(word))


def _duration(text: str, word: str, where: str) -> float:
    return _scaled(text, word, _SECONDS, f"a duration {where}, like 500ms, 30s, 10m, 1h or 7d")


def _scaled(text: str, word: str, units: Mapping[str, float], expected: str) -> float:
    match = _NUMBER.fullmatch(word)
    if match is None or match[2] not in units:
        raise _invalid(text, f"{word!r} is not {expected}" if word else f"{expected}, is missing", _EXAMPLE)
    return float(match[1].replace("_", "")) * units[match[2]]


def _invalid(text: str, problem: str, hint: str) -> InvalidRule:
    return InvalidRule(f"the rule {text.strip()!r} is invalid: {problem}", hint=hint)
