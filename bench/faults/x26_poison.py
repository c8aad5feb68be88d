"""X26, poison values: nested 100,000 levels deep, numbers of 5,000 digits, 2^63, NaN, bytes that are not UTF-8, lone
surrogates, NUL, twin keys, wrong types, junk behind the value, and mixtures, hundreds in a run among good ones.

They go through a flow and the SQLite view of what it writes. Each is either derived with nothing altered, as a rule
written by hand reads it, or a dead letter with its bytes, its place and a reason; in = out + dead; and the view takes
all that the flow takes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import random
import sqlite3
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from bench.faults.committed import committed
from bench.faults.flow_world import batches, jvm_peak_mb, running, world
from bench.faults.outcome import Outcome
from bench.faults.poison import Maker
from bench.faults.poison_rule import expected_row
from bench.faults.sim_loop import patched
from headrace.app import App

__all__ = ["UNPROTECTED", "run"]

FAULT = "X26"
UNPROTECTED = {
    "care": r"is no dead letter",
    "nan": r"the view (has|is without)",
    "bytes": r"is a dead letter as",
}
_VALUES = 500
_ERRORS = "__headrace.errors."


@dataclass(frozen=True)
class Part:
    number: int
    name: str | None = None


@dataclass(frozen=True)
class Rich:
    id: str
    text: str | None = None
    whole: int | None = None
    number: float | None = None
    truth: bool | None = None
    exact: Decimal | None = None
    at: datetime | None = None
    raw: bytes | None = None
    texts: list[str] | None = None
    counts: dict[str, int] | None = None
    part: Part | None = None


def run(seed: int, *, protected: bool = True, without: str = "care", values: int = _VALUES) -> Outcome:
    outcome = Outcome(FAULT, seed, cases=values)
    scene = _Scene(random.Random(f"{FAULT} {seed}"), outcome)
    scene.make(values)
    with contextlib.ExitStack() as stack:
        if not protected:
            _take_out(without, stack)
        scene.play()
    scene.judge()
    return outcome


def _take_out(protection: str, stack: contextlib.ExitStack) -> None:
    if protection == "care":
        from pyspark.sql import functions as F

        from headrace.flow import decoding

        # What Spark's own parser takes is taken.
        stack.enter_context(patched(decoding, "careful", lambda *_: F.lit(None)))
    elif protection == "nan":
        from headrace.views import rows

        stack.enter_context(patched(rows, "_float", lambda value: value))
    else:
        from headrace.flow import batch

        dead_letter = batch.dead_letter

        def as_text(flow, record):  # type: ignore[no-untyped-def]
            side = dead_letter(flow, record)
            text = None if side.value is None else side.value.decode(errors="replace").encode()
            return batch.Side(side.topic, side.key, text, side.headers)

        stack.enter_context(patched(batch, "dead_letter", as_text))


class _Scene:
    def __init__(self, rng: random.Random, outcome: Outcome) -> None:
        self._rng = rng
        self._outcome = outcome
        self._mark = mark = uuid.uuid4().hex[:8]
        self._sent: list[tuple[str, bytes | None]] = []
        self._app = app = App(f"poison-{mark}")
        self._source = app.topic(f"given-{mark}", Rich, key="id")
        taken = app.topic(f"taken-{mark}", key="id")

        @app.flow(reads=[self._source], writes=taken, name=f"take-{mark}")
        def take(given: Any) -> Any:
            return given

        app.view(f"taken_{mark}", taken)

    def make(self, values: int) -> None:
        maker = Maker(self._rng)
        self._sent = [maker.value() for _ in range(values)]

    def play(self) -> None:
        where = world()
        where.declare(self._app)
        producer = where.cluster.producer({"linger.ms": 5})
        for number, (_, value) in enumerate(self._sent):
            producer.produce(self._source.name, value, b"k%d" % number, partition=0)
        assert producer.flush(60) == 0
        with running(self._app, self._rng.choice((len(self._sent) // 3, 100_000))) as run:
            run.followed()
        self._outcome.peak_rss_mb = jvm_peak_mb()

    def judge(self) -> None:
        expected = [expected_row(value) for _, value in self._sent]
        rows = [row for row in expected if row is not None]
        dead = {number for number, row in enumerate(expected) if row is None}
        self._outcome.hits += len(dead)
        bootstrap = world().cluster.bootstrap
        taken = [
            json.loads(one.value(), parse_float=_Written)
            for one in committed(bootstrap, f"taken-{self._mark}")
        ]
        self._judge_rows("the flow", [_of_log(row) for row in taken], [_shown(row) for row in rows])
        self._judge_dead(dead)
        totals = batches(bootstrap, f"take-{self._mark}")[-1]["totals"]
        if (totals["rows_in"], totals["rows_out"] + totals["dead"]) != (len(self._sent),) * 2:
            self._object(f"{totals} for {len(self._sent)} values")
        # The last one of an id counts.
        last = {row["id"]: {**row, "number": _without_sign(row["number"])} for row in rows}
        self._judge_rows("the view", self._stored(), [_shown(row) for row in last.values()])
        if world().cluster.topic(f"taken_{self._mark}.dead") is not None:
            self._object("the view refused what the flow had taken")

    def _judge_rows(self, what: str, found: list[str], expected: list[str]) -> None:
        more, less = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
        self._outcome.lost += less.total()
        for row in [*more][:3]:
            self._object(f"{what} has {row[:400]}, which nobody sent")
        for row in [*less][:3]:
            self._object(f"{what} is without {row[:400]}")

    def _judge_dead(self, expected: set[int]) -> None:
        found: Counter[int] = Counter()
        for one in committed(world().cluster.bootstrap, f"take-{self._mark}.dead"):
            told = {name.removeprefix(_ERRORS): value for name, value in one.headers() or []}
            if "offset" not in told:
                self._object(f"a dead letter without its place: {told}")
                continue
            number = int(told["offset"])
            found[number] += 1
            if (told["topic"], told["partition"]) != (self._source.name.encode(), b"0"):
                self._object(f"a dead letter of {told}")
            if not told.get("message"):
                self._object(f"{self._what(number)} is a dead letter without a reason")
            if (one.key(), one.value()) != (b"k%d" % number, self._sent[number][1]):
                self._object(f"{self._what(number)} is a dead letter as {(one.value() or b'')[:200]!r}")
        self._outcome.duplicated += sum(times - 1 for times in found.values())
        for number in sorted(expected - set(found))[:3]:
            self._object(f"{self._what(number)} is no dead letter")
        for number in sorted(set(found) - expected)[:3]:
            self._object(f"{self._what(number)} is a dead letter, and fits")

    def _what(self, number: int) -> str:
        kind, value = self._sent[number]
        return f"value {number} ({kind}), {value if value is None else value[:300]!r},"

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def _stored(self) -> list[str]:
        path = world().home / f"{self._app.name}.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [_of_store(dict(row)) for row in connection.execute(f'SELECT * FROM "taken_{self._mark}"')]


class _Written(str):
    """A number with a point, as it was written."""

    __slots__ = ()


def _shown(row: dict[str, Any]) -> str:
    """One text for one row, whoever has it."""
    return repr({name: row[name] for name in sorted(row)})


def _of_log(row: dict[str, Any]) -> str:
    if isinstance(row["number"], int | str):
        row["number"] = float(row["number"])
    if row["exact"] is not None:
        row["exact"] = str(row["exact"])
    return _shown({name: _plain(one) for name, one in row.items()})


def _without_sign(number: float | None) -> float | None:
    """SQLite has one zero."""
    return number if number is None or number else 0.0


def _of_store(row: dict[str, Any]) -> str:
    if isinstance(row["number"], str):
        row["number"] = math.nan if row["number"] == "NaN" else row["number"]
    if row["truth"] is not None:
        row["truth"] = bool(row["truth"])
    if row["raw"] is not None:
        row["raw"] = base64.b64encode(row["raw"]).decode()
    for name in ("texts", "counts", "part"):
        if row[name] is not None:
            row[name] = json.loads(row[name])
    return _shown(row)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, _Written) else value
