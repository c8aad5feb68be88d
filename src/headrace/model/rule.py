"""A rule of an alert as it is written: ``lag > 10_000 for 30s on flow price``.

    rule       condition {"and" condition} ["for" duration] ["on" subject]
    condition  measure ("<" | "<=" | ">" | ">=") value
    measure    lag, gone, dead      records
               bytes                of what is yet to be read; an estimate
               age                  of the oldest record that is yet to be read
               time_to_loss         until retention takes it, at the present rates; also written "time to loss"
    value      10_000, 64MiB, 30s, 10m, 1h, 7d; for time_to_loss also 25%, of the time that a record is kept
    subject    flow NAME, view NAME, group NAME, flows, views, groups

It is read by this grammar and nothing else: no text of a rule is ever run.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import HeadraceError

__all__ = [
    "MEASURES",
    "SHARE",
    "Condition",
    "Rule",
    "RuleUnreadable",
    "Subject",
    "parse_rule",
    "parse_subject",
]

MEASURES = ("lag", "bytes", "age", "time_to_loss", "gone", "dead")
SHARE = "time_to_loss_share"
"""Of the time that a record is kept; what a percentage is compared with."""

_COUNTS = ("lag", "gone", "dead")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_OPERATORS = ("<=", ">=", "<", ">")
_TOKEN = re.compile(r"\s*(<=|>=|<|>|[^\s<>]+)")
_NUMBER = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)([A-Za-z%]*)")
_KINDS = ("flow", "view", "group")
_EXAMPLE = "write it as: lag > 10_000 for 30s, time_to_loss < 1h, dead > 0"


class RuleUnreadable(HeadraceError):
    code = "HR-ALERT-RULE"


@dataclass(frozen=True, slots=True)
class Condition:
    measure: str
    operator: str
    value: float
    is_share: bool = False
    """Whether ``value`` is a share of the time that a record is kept."""

    def holds(self, measures: Mapping[str, float | None]) -> bool | None:
        """None where what it compares is not known."""
        found = measures.get(SHARE if self.is_share else self.measure)
        if found is None:
            return None
        match self.operator:
            case "<":
                return found < self.value
            case "<=":
                return found <= self.value
            case ">":
                return found > self.value
            case _:
                return found >= self.value


@dataclass(frozen=True, slots=True)
class Subject:
    """One flow, view or group, or all of a kind; with neither kind nor name everything there is."""

    what: str = ""
    name: str = ""

    def takes(self, what: str, name: str) -> bool:
        return self.what in ("", what) and self.name in ("", name)


@dataclass(frozen=True, slots=True)
class Rule:
    text: str
    conditions: tuple[Condition, ...]
    for_s: float = 0.0
    """How long it must hold before it counts."""
    subject: Subject = Subject()

    def holds(self, measures: Mapping[str, float | None]) -> bool | None:
        """None where it cannot be said."""
        found = [one.holds(measures) for one in self.conditions]
        if False in found:
            return False
        return None if None in found else True


def parse_rule(text: str) -> Rule:
    """Raises ``RuleUnreadable``, which quotes what it did not understand."""
    condition_text, on, subject_text = _split_subject(text)
    tokens = _tokens(condition_text)
    if not tokens:
        raise _unreadable(text, "it says nothing", _EXAMPLE)
    conditions: list[Condition] = []
    for_s = 0.0
    while True:
        conditions.append(_condition(text, tokens))
        word = tokens.pop(0) if tokens else ""
        if word == "and":
            continue
        if word == "for":
            given = tokens.pop(0) if tokens else ""
            for_s = _duration(text, given, "behind 'for'")
            word = tokens.pop(0) if tokens else ""
        if word:
            raise _unreadable(text, f"{word!r} is not expected there", _EXAMPLE)
        subject = parse_subject(subject_text, within=text) if on else Subject()
        return Rule(" ".join(text.split()), tuple(conditions), for_s, subject)


def parse_subject(text: str, *, within: str = "") -> Subject:
    """``flow price``, ``groups`` and the like; a group's name may have blanks in it."""
    kind, _, name = text.strip().partition(" ")
    if kind in _KINDS and name.strip():
        return Subject(kind, name.strip())
    if kind.removesuffix("s") in _KINDS and kind.endswith("s") and not name:
        return Subject(kind.removesuffix("s"))
    raise _unreadable(
        within or text,
        f"{text.strip()!r} is not what a rule can be on",
        "flow NAME, view NAME, group NAME, flows, views or groups",
    )


def _split_subject(text: str) -> tuple[str, str, str]:
    found = re.search(r"\son\s", f"{text} ")
    return (text, "", "") if found is None else (text[: found.start()], "on", text[found.end() :])


def _tokens(text: str) -> list[str]:
    found = _TOKEN.findall(text)
    joined: list[str] = []
    while found:
        if [one.lower() for one in found[:3]] == ["time", "to", "loss"]:
            joined.append("time_to_loss")
            found = found[3:]
        else:
            joined.append(found.pop(0))
    return joined


def _condition(text: str, tokens: list[str]) -> Condition:
    measure = tokens.pop(0) if tokens else ""
    if measure not in MEASURES:
        close = difflib.get_close_matches(measure, MEASURES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it can be {', '.join(MEASURES)}"
        raise _unreadable(text, f"{measure!r} is not measured" if measure else "a condition is missing", hint)
    operator = tokens.pop(0) if tokens else ""
    if operator not in _OPERATORS:
        wrong = f"{operator!r} does not compare" if operator else f"nothing is compared with {measure}"
        raise _unreadable(text, wrong, "compare with <, <=, > or >=")
    given = tokens.pop(0) if tokens else ""
    if not given:
        raise _unreadable(text, f"nothing stands behind {measure} {operator}", _EXAMPLE)
    if measure in _COUNTS:
        return Condition(measure, operator, _count(text, given, measure))
    if measure == "bytes":
        return Condition(measure, operator, _scaled(text, given, _BYTES, "a size, as 64MiB or 10GB"))
    if measure == "time_to_loss" and given.endswith("%"):
        share = _scaled(text, given, {"%": 0.01}, "a percentage, as 25%")
        return Condition(measure, operator, share, is_share=True)
    return Condition(measure, operator, _duration(text, given, f"behind {measure}"))


def _count(text: str, given: str, measure: str) -> float:
    if re.fullmatch(r"[0-9][0-9_]*", given) is None:
        raise _unreadable(text, f"{given!r} is not a number of records", f"as in: {measure} > 10_000")
    return float(int(given))


def _duration(text: str, given: str, where: str) -> float:
    return _scaled(text, given, _SECONDS, f"a duration {where}, as 500ms, 30s, 10m, 1h or 7d")


def _scaled(text: str, given: str, units: Mapping[str, float], wanted: str) -> float:
    found = _NUMBER.fullmatch(given)
    if found is None or found[2] not in units:
        raise _unreadable(text, f"{given!r} is not {wanted}" if given else f"there is not {wanted}", _EXAMPLE)
    return float(found[1].replace("_", "")) * units[found[2]]


def _unreadable(text: str, wrong: str, hint: str) -> RuleUnreadable:
    return RuleUnreadable(f"the rule {text.strip()!r} makes no sense: {wrong}", hint=hint)
