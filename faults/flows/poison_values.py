"""Fault X26, poison values: nested 100,000 levels deep, numbers of 5,000 digits, 2^63, NaN, invalid UTF-8, lone
surrogates, NUL, duplicate keys, wrong types, junk after the value, and mixtures. A run sends hundreds of them among
good values.

They go through a flow and the SQLite view of its output. Each value must be derived exactly as the oracle decodes it,
or become a dead letter with its bytes, its topic, partition and offset, and a reason. The number of inputs must equal
the outputs plus the dead letters, and the view must accept everything that the flow accepts.
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
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from faults.committed_records import committed, headers_of
from faults.flows.poison_oracle import expected_row
from faults.flows.poison_samples import PoisonMaker
from faults.flows.shared_world import batches, jvm_peak_mb, running, world
from faults.outcome import Outcome
from faults.patch import patched
from headrace.app import App
from headrace.client.transactional_writer import OutgoingRecord
from headrace.model.declarations import Flow
from headrace.model.progress import Generation

__all__ = ["UNPROTECTED", "run"]

FAULT = "X26"
UNPROTECTED = {
    "strict-decoding": r"is not a dead letter",
    "nan-as-text": r"the view (has|lacks)",
    "original-bytes": r"is a dead letter with the bytes",
}
_VALUES = 500
_ERRORS = "__headrace.errors."


@dataclass(frozen=True)
class Part:
    number: int
    name: str | None = None


@dataclass(frozen=True)
class Sample:
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


def run(
    seed: int, *, protected: bool = True, without: str = "strict-decoding", values: int = _VALUES
) -> Outcome:
    outcome = Outcome(FAULT, seed, cases=values)
    scene = _Scene(random.Random(f"{FAULT} {seed}"), outcome)
    scene.draw_values(values)
    with contextlib.ExitStack() as stack:
        if not protected:
            _remove_protection(without, stack)
        scene.run_flow()
    scene.judge()
    return outcome


def _remove_protection(protection: str, stack: contextlib.ExitStack) -> None:
    if protection == "strict-decoding":
        from pyspark.sql import functions as F

        from headrace.flow.codec import json_decode

        # Accept everything that Spark's own parser accepts.
        stack.enter_context(patched(json_decode, "strict_reason", lambda *_: F.lit(None)))
    elif protection == "nan-as-text":
        from headrace.stores import rows

        stack.enter_context(patched(rows, "_float", lambda value: value))
    else:
        from headrace.flow import commit
        from headrace.flow.rejected import RejectedRecord, dead_letter

        def letter_with_text(flow: Flow, rejected: RejectedRecord, generation: Generation) -> OutgoingRecord:
            letter = dead_letter(flow, rejected, generation)
            text = None if letter.value is None else letter.value.decode(errors="replace").encode()
            return replace(letter, value=text)

        stack.enter_context(patched(commit, "dead_letter", letter_with_text))


class _Scene:
    def __init__(self, rng: random.Random, outcome: Outcome) -> None:
        self._rng = rng
        self._outcome = outcome
        self._suffix = suffix = uuid.uuid4().hex[:8]
        self._sent: list[tuple[str, bytes | None]] = []
        self._app = app = App(f"poison-{suffix}")
        self._source = app.topic(f"source-{suffix}", Sample, key="id")
        accepted = app.topic(f"taken-{suffix}", key="id")

        @app.flow(reads=[self._source], writes=accepted, name=f"take-{suffix}")
        def take(values: Any) -> Any:
            return values

        app.view(f"taken_{suffix}", accepted)

    def draw_values(self, values: int) -> None:
        maker = PoisonMaker(self._rng)
        self._sent = [maker.value() for _ in range(values)]

    def run_flow(self) -> None:
        flow_world = world()
        flow_world.declare(self._app)
        producer = flow_world.cluster.producer({"linger.ms": 5})
        for number, (_, value) in enumerate(self._sent):
            producer.produce(self._source.name, value, b"k%d" % number, partition=0)
        assert producer.flush(60) == 0
        with running(self._app, self._rng.choice((len(self._sent) // 3, 100_000))) as run:
            run.wait_until_followed()
        self._outcome.peak_rss_mb = jvm_peak_mb()

    def judge(self) -> None:
        expected = [expected_row(value) for _, value in self._sent]
        rows = [row for row in expected if row is not None]
        dead = {number for number, row in enumerate(expected) if row is None}
        self._outcome.hits += len(dead)
        bootstrap = world().cluster.bootstrap
        accepted = [
            json.loads(message.value() or b"", parse_float=_JsonNumber)
            for message in committed(bootstrap, f"taken-{self._suffix}")
        ]
        self._judge_rows(
            "the flow", [_text_of_log_row(row) for row in accepted], [_row_text(row) for row in rows]
        )
        self._judge_dead(dead)
        totals = batches(bootstrap, f"{self._app.name}.take-{self._suffix}")[-1]["totals"]
        if (totals["rows_in"], totals["rows_out"] + totals["dead"]) != (len(self._sent),) * 2:
            self._report_problem(f"the totals are {totals} for {len(self._sent)} values")
        # The last value of an id counts.
        last = {row["id"]: {**row, "number": _without_zero_sign(row["number"])} for row in rows}
        self._judge_rows("the view", self._stored(), [_row_text(row) for row in last.values()])
        if world().cluster.topic(f"{self._app.name}.taken_{self._suffix}.dead") is not None:
            self._report_problem("the view refused values that the flow had accepted")

    def _judge_rows(self, name: str, actual: list[str], expected: list[str]) -> None:
        extra, missing = Counter(actual) - Counter(expected), Counter(expected) - Counter(actual)
        self._outcome.lost += missing.total()
        for row in [*extra][:3]:
            self._report_problem(f"{name} has {row[:400]}, which no client sent")
        for row in [*missing][:3]:
            self._report_problem(f"{name} lacks {row[:400]}")

    def _judge_dead(self, expected: set[int]) -> None:
        letters_per_value: Counter[int] = Counter()
        for letter in committed(world().cluster.bootstrap, f"{self._app.name}.take-{self._suffix}.dead"):
            headers = {name.removeprefix(_ERRORS): value for name, value in headers_of(letter).items()}
            if "offset" not in headers:
                self._report_problem(f"a dead letter has no offset: {headers}")
                continue
            number = int(headers["offset"])
            letters_per_value[number] += 1
            if (headers["topic"], headers["partition"]) != (self._source.name.encode(), b"0"):
                self._report_problem(f"a dead letter has unexpected headers: {headers}")
            if not headers.get("message"):
                self._report_problem(f"{self._describe(number)} is a dead letter without a reason")
            if (letter.key(), letter.value()) != (b"k%d" % number, self._sent[number][1]):
                self._report_problem(
                    f"{self._describe(number)} is a dead letter with the bytes {(letter.value() or b'')[:200]!r}"
                )
        self._outcome.duplicated += sum(times - 1 for times in letters_per_value.values())
        for number in sorted(expected - set(letters_per_value))[:3]:
            self._report_problem(f"{self._describe(number)} is not a dead letter")
        for number in sorted(set(letters_per_value) - expected)[:3]:
            self._report_problem(f"{self._describe(number)} is a dead letter, although it fits the schema")

    def _describe(self, number: int) -> str:
        kind, value = self._sent[number]
        return f"value {number} ({kind}), {value if value is None else value[:300]!r},"

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def _stored(self) -> list[str]:
        path = world().home / f"{self._app.name}.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [
                _text_of_store_row(dict(row))
                for row in connection.execute(f'SELECT * FROM "taken_{self._suffix}"')
            ]


class _JsonNumber(str):
    """A number with a decimal point, as it is written in the JSON text."""

    __slots__ = ()


def _row_text(row: dict[str, Any]) -> str:
    """Return the row as a text that is the same for the flow, the view and the oracle."""
    return repr({name: row[name] for name in sorted(row)})


def _text_of_log_row(row: dict[str, Any]) -> str:
    if isinstance(row["number"], int | str):
        row["number"] = float(row["number"])
    if row["exact"] is not None:
        row["exact"] = str(row["exact"])
    return _row_text({name: _plain(value) for name, value in row.items()})


def _without_zero_sign(number: float | None) -> float | None:
    """Remove the sign of zero, because SQLite has only one zero."""
    return number if number is None or number else 0.0


def _text_of_store_row(row: dict[str, Any]) -> str:
    if isinstance(row["number"], str):
        row["number"] = math.nan if row["number"] == "NaN" else row["number"]
    if row["truth"] is not None:
        row["truth"] = bool(row["truth"])
    if row["raw"] is not None:
        row["raw"] = base64.b64encode(row["raw"]).decode()
    for name in ("texts", "counts", "part"):
        if row[name] is not None:
            row[name] = json.loads(row[name])
    return _row_text(row)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, _JsonNumber) else value
