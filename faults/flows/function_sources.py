"""The source code of an app with one flow, as a template. The texts that fill its placeholders decide what the
function derives.

``choices`` has one text per placeholder. A changed source has another text in one placeholder, so its function derives
other rows. A reformatted source has other comments, blank lines or names of local variables, but derives the same rows.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from headrace.app import App

__all__ = ["KINDS", "AppSource", "draw_source"]

_WIDTH = 40
_NUMBERS = tuple(str(number) for number in range(2, 60))
_TEXTS = ('"x"', '"y"', '"xy"', '""', '"ä"')

_HEAD = """
import functools
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from pyspark.sql import functions as F
from pyspark.sql import types as T

import rates_$suffix as rates
from headrace import App

app = App("changes-$suffix")


@dataclass(frozen=True)
class Sale:
    sale: int
    account: str
    amount: int
    parts: list[int]
    at: datetime
    note: $note


sales = app.topic("sales-$suffix", Sale, key="sale", time="at", late=timedelta(hours=$late))
derived = app.topic("derived-$suffix", key=$key)
"""

_FLOW = """

@app.flow(reads=[sales], writes=derived, name="derive-$suffix", unbounded=True, deterministic=True)
def derive(sales):
"""

_COLUMNS = (
    _HEAD
    + _FLOW
    + "    counted = sales.where($filter)\n    return counted.select(\n        'sale', 'account', 'amount',\n"
    + "".join(f"        (F.col('amount') + $c{at}).alias('c{at}'),\n" for at in range(_WIDTH))
    + "    )\n"
)

_NESTED = (
    _HEAD
    + "\nBANDS = [$band0, $band1]\n"
    + _FLOW
    + "    wide = F.struct(*[(F.col('amount') + value).alias(f'f{at}') for at, value in enumerate(["
    + ", ".join(f"$s{at}" for at in range(_WIDTH))
    + "])])\n"
    + "    steps = F\n"
    + "    for at, value in enumerate(["
    + ", ".join(f"$w{at}" for at in range(_WIDTH))
    + "]):\n        steps = steps.when(F.col('amount') < at, F.lit(value))\n"
    + """
    joined = sales.join(
        F.broadcast(sales.sparkSession.createDataFrame([("a0", $row0), ("a1", $row1)], "account string, bonus long")),
        "account",
        $how,
    )
    counted = joined.select(
        "sale",
        "account",
        wide.alias("wide"),
        steps.alias("step"),
        F.col("amount").isin($member, *range(100, 160)).alias("member"),
        F.transform("parts", lambda part: part + $lambda).alias("parts"),
        F.expr("amount * $expr + 1").alias("expr"),
        F.create_map(F.lit("k"), F.lit($map)).alias("map"),
        F.date_format("at", $pattern).alias("day"),
        F.when(F.col("amount") > BANDS[0], "low").when(F.col("amount") > BANDS[1] + 100, "high").alias("band"),
        F.col("bonus"),
    )
    return counted.dropDuplicates($duplicates)
"""
)

_GROUPED = (
    _HEAD
    + _FLOW
    + """    minutes = sales.where($filter).groupBy("account", F.window("at", $window, $slide).alias("window"))
    totals = minutes.agg(
        F.$first("amount").alias("first"),
        F.$by("sale", "amount").alias("sale"),
        F.sum(F.col("amount") * $weight).alias("total"),
"""
    + "".join(f"        F.sum(F.col('amount') + $c{at}).alias('c{at}'),\n" for at in range(_WIDTH))
    + """    )
    return totals.select("account", F.col("window.start").alias("minute"), *[
        name for name in totals.columns if name not in ("account", "window")
    ])
"""
)

_PYTHON = (
    _HEAD
    + """
LIMIT = $limit
NAMES = {"a0": $entry, "a1": [$item, 2], "a2": {"deep": ($deep,)}}
PATTERN = re.compile($regex)


class Level(Enum):
    LOW = $enum


class Bonus:
    share = $attribute

    def __init__(self, base):
        self.base = base

    def of(self, amount):
        return amount * self.share + self.base + $method


def scaled(value, by=$default, *, beyond=$keyword):
    try:
        return value * by + beyond
    except TypeError:
        return $handler


def helped(value):
    import rates_$suffix as late

    return sum(one $operator late.INSIDE for one in (value, 3))


def rate_of(closure, bonus, partly):
    nested = {"held": [closure]}

    def rate(amount):
        def inner(one):
            return one + closure + $inner

        found = scaled(amount) + helped(amount) + inner(amount) + nested["held"][0] + partly(amount)
        found += LIMIT + rates.BASE + rates.TABLE["k"] + NAMES["a0"] + NAMES["a1"][0] + NAMES["a2"]["deep"][0]
        return found + bonus.of(amount) + Level.LOW.value + (1 if PATTERN.search(str(amount)) else 0)

    return rate
"""
    + _FLOW
    + """    partly = functools.partial(scaled, by=$partial)
    rate = F.udf(rate_of($closure, Bonus($state), partly), T.LongType())
    return sales.select("sale", "account", rate("amount").alias("rate"), (F.col("amount") + $beside).alias("beside"))
"""
)

_RATES = "BASE = $module\nTABLE = {'k': $table}\nINSIDE = $imported\n"

_KEYS = ('"sale"', '["sale", "account"]', '["account", "sale"]')
_HOURS = ("1", "2", "30")
_NOTES = ("str", "str | None = None")
"""A required field, or an optional one."""
_FILTERS = tuple(f"F.col('amount') {sign} {limit}" for sign in (">", ">=", "<", "!=") for limit in (3, 4, 5))
_WIDE = {f"{name}{at}": _NUMBERS for name in "c" for at in range(_WIDTH)}

_PLACEHOLDERS_OF_PYTHON = (
    *("limit", "entry", "item", "deep", "enum", "attribute", "method", "default", "keyword"),
    *("handler", "inner", "partial", "closure", "state", "beside", "module", "table", "imported"),
)

KINDS: Mapping[str, tuple[str, Mapping[str, tuple[str, ...]]]] = {
    "columns": (_COLUMNS, _WIDE | {"filter": _FILTERS, "key": _KEYS, "late": _HOURS, "note": _NOTES}),
    "nested": (
        _NESTED,
        {f"{name}{at}": _NUMBERS for name in "sw" for at in range(_WIDTH)}
        | dict.fromkeys(("band0", "band1", "row0", "row1", "member", "lambda", "expr", "map"), _NUMBERS)
        | {
            "how": ('"inner"', '"left"'),
            "pattern": ('"yyyy-MM-dd"', '"yyyy-MM"', '"yyyy"'),
            "duplicates": ('["sale"]', '["account"]', '["sale", "account"]'),
            "key": _KEYS,
            "late": _HOURS,
            "note": _NOTES,
        },
    ),
    "grouped": (
        _GROUPED,
        _WIDE
        | {
            "filter": _FILTERS,
            "window": ('"10 minutes"', '"20 minutes"'),
            "slide": ('"5 minutes"', '"10 minutes"'),
            "first": ("min", "max", "sum", "count"),
            "by": ("max_by", "min_by"),
            "weight": _NUMBERS,
            "key": ('["account", "minute"]', '["minute", "account"]'),
            "late": _HOURS,
            "note": _NOTES,
        },
    ),
    "python": (
        _PYTHON,
        dict.fromkeys(_PLACEHOLDERS_OF_PYTHON, _NUMBERS)
        | {"regex": _TEXTS, "operator": ("+", "-", "*", "//"), "key": _KEYS, "late": _HOURS, "note": _NOTES},
    ),
}
"""For each kind: the template, and the possible texts of each placeholder."""


@dataclass(frozen=True, slots=True)
class AppSource:
    kind: str
    suffix: str
    """A part of the names of the app's topics, flow and modules."""
    choices: Mapping[str, str]
    is_reformatted: bool = False

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(KINDS[self.kind][1])

    def changed(self, rng: random.Random) -> tuple[str, AppSource]:
        """Return a placeholder, and the source with another text in that placeholder."""
        placeholder = rng.choice(self.placeholders)
        others = [
            choice for choice in KINDS[self.kind][1][placeholder] if choice != self.choices[placeholder]
        ]
        return placeholder, replace(self, choices={**self.choices, placeholder: rng.choice(others)})

    def load(self, home: Path) -> App:
        """Write the app's files and import the app from them, as a start does."""
        rates = f"rates_{self.suffix}"
        rates_text = Template(_RATES).safe_substitute(self.choices)
        self._import(home, rates, rates_text)
        text = Template(KINDS[self.kind][0]).safe_substitute(self.choices, suffix=self.suffix)
        module = self._import(home, f"app_{self.suffix}", _reformat(text) if self.is_reformatted else text)
        app: App = module.app
        return app

    @staticmethod
    def _import(home: Path, name: str, text: str) -> types.ModuleType:
        file = home / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        module = types.ModuleType(name)
        module.__file__ = str(file)
        sys.modules[name] = module
        exec(compile(text, str(file), "exec"), vars(module))
        return module


def _reformat(text: str) -> str:
    """Return the same function, reformatted: a comment above each function, other names for local variables."""
    for name in ("counted", "totals", "found", "steps"):
        text = text.replace(name, f"{name}_so_far")
    return text.replace("\ndef ", "\n# This function has not changed.\n\n\ndef ")


def draw_source(rng: random.Random, kind: str, suffix: str) -> AppSource:
    choices_drawn = {placeholder: rng.choice(choices) for placeholder, choices in KINDS[kind][1].items()}
    # Every kind of app imports the ``rates`` module.
    rates = {placeholder: rng.choice(_NUMBERS) for placeholder in ("module", "table", "imported")}
    return AppSource(kind, suffix, rates | choices_drawn)
