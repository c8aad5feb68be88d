"""X31, code changes under the data: between two starts of a flow its source is changed in one place.

What changes is drawn: a column beyond the 25th, a field of a struct, a filter, a row of a joined list, a closure, a
default, a global, an attribute of a module, what a container holds, the key of the topic, whether a field of the input
is required. The next start must raise ``FlowChanged`` before a row is written, and no new generation may begin; a start
of the same source, merely edited, must go on. The first case of each run has input: what is in its topic must be of one
function only, worked out by hand.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.faults.committed import committed
from bench.faults.flow_world import jvm_peak_mb, world
from bench.faults.function_sources import KINDS, AppSource, draw_source
from bench.faults.outcome import Outcome
from bench.faults.sim_loop import patched
from headrace.app import App
from headrace.flow.errors import FlowChanged

__all__ = ["UNPROTECTED", "run"]

FAULT = "X31"
UNPROTECTED = {"comparison": r"goes unnoticed", "whole-plan": r"goes unnoticed"}
_CASES = 10
_RECORDS = 30


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "comparison",
    cases: int = _CASES,
    with_input: bool = True,
) -> Outcome:
    """``with_input``: the first case derives rows, which takes longer."""
    outcome = Outcome(FAULT, seed, cases=0)
    rng = random.Random(f"{FAULT} {seed}")
    with tempfile.TemporaryDirectory(prefix="headrace-x31-") as home:
        for number in range(cases):
            derives = with_input and number == 0
            kind = "columns" if derives else rng.choice(tuple(KINDS))
            source = draw_source(rng, kind, uuid.uuid4().hex[:8])
            change = _Change(source, rng, Path(home), outcome)
            with contextlib.nullcontext() if protected else _without(without):
                change.play_with_input() if derives else change.play()
            outcome.cases += 1
            if not protected and outcome.shows(UNPROTECTED[without]):
                break
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


@contextlib.contextmanager
def _without(protection: str) -> Iterator[None]:
    from headrace.flow import compiled, opening

    if protection == "comparison":
        with patched(opening, "_expect_same_function", lambda *of: None):
            yield
    else:
        with patched(compiled, "fingerprint", _cut_plan):
            yield


def _cut_plan(flow: Any, plan: Any, output: Any, schema: Any) -> str:
    """The plan as Spark prints it, with 25 fields of a step at most and of Python functions their names; and what is
    declared.
    """
    analyzed: Any = output._jdf.queryExecution().analyzed()
    declared = [flow.writes.key, *((topic.name, topic.late) for topic in flow.reads)]
    return f"2:{analyzed.canonicalized().toString()} {schema.fields} {declared}"


class _Change:
    """A source, a changed one and an edited one."""

    def __init__(self, source: AppSource, rng: random.Random, home: Path, outcome: Outcome) -> None:
        self._source = source
        self._rng = rng
        self._home = home
        self._outcome = outcome
        self._hole, self._changed = source.changed(rng)
        self._edited = AppSource(source.kind, source.mark, source.choices, edited=True)

    @property
    def _told(self) -> str:
        before, after = (one.choices[self._hole] for one in (self._source, self._changed))
        return f"{self._source.kind}: {self._hole} from {before} to {after}"

    def play(self) -> None:
        """Starts that go as far as the flow's opening: where a batch would begin, they end."""
        self._open(self._source)
        before = self._records()
        self._expect_changed(lambda: self._open(self._changed))
        if self._records() != before:
            self._outcome.problems.append(f"{self._told}: {before} became {self._records()}")
        self._expect_unchanged(lambda: self._open(self._edited))

    def _expect_changed(self, start: Any) -> None:
        self._outcome.hits += 1
        with contextlib.suppress(FlowChanged):
            start()
            self._outcome.problems.append(f"{self._told} goes unnoticed")

    def _expect_unchanged(self, start: Any) -> None:
        try:
            start()
        except FlowChanged as error:
            self._outcome.problems.append(
                f"{self._source.kind} is the same, and is taken for another: {error}"
            )

    def _open(self, source: AppSource) -> None:
        from headrace.flow.compiling import compile_app
        from headrace.flow.opening import open_flow
        from headrace.flow.options import FlowOptions
        from headrace.flow.ownership import Ownership
        from headrace.flow.runner import transactional_id
        from headrace.flow.writer import Writer

        where, app = world(), source.load(self._home)
        where.declare(app)
        [compiled], _ = compile_app(where.spark, app)
        flow, options = compiled.flow, FlowOptions.of(where.settings())
        owner = Ownership(where.cluster, flow, options.transaction_timeout_ms)
        with contextlib.closing(Writer(where.cluster, flow.name, transactional_id(flow))) as writer:
            open_flow(where.spark, where.cluster, app, compiled, writer, options, owner)

    def _records(self) -> tuple[int, int]:
        """Generations that began, and rows of the topic."""
        mark, bootstrap = self._source.mark, world().cluster.bootstrap
        progress = [json.loads(one.value() or b"") for one in committed(bootstrap, f"derive-{mark}.progress")]
        generations = sum(one["record"] == "generation" for one in progress)
        return generations, len(committed(bootstrap, f"derived-{mark}"))

    # With input

    def play_with_input(self) -> None:
        app = self._source.load(self._home)
        world().declare(app)
        self._write(app, 0)
        self._run(app)
        self._write(app, _RECORDS)
        self._expect_changed(lambda: self._run(self._changed.load(self._home)))
        self._expect_unchanged(lambda: self._run(self._edited.load(self._home)))
        self._judge()

    def _run(self, app: App) -> None:
        with world().running(app, follow=False) as run:
            run.derived()

    def _write(self, app: App, first: int) -> None:
        rows = [_sale(number) for number in range(first, first + _RECORDS)]
        world().write(app.topics[0], [(str(row["sale"]).encode(), json.dumps(row).encode()) for row in rows])

    def _judge(self) -> None:
        choices = self._source.choices
        added = {
            name: int(value) for name, value in choices.items() if name[0] == "c" and name[1:].isdecimal()
        }
        condition = choices["filter"].replace("F.col('amount')", "amount")
        wanted: Counter[str] = Counter()
        for sale in map(_sale, range(2 * _RECORDS)):
            if eval(condition, {"amount": sale["amount"]}):
                row = {name: sale[name] for name in ("sale", "account", "amount")}
                row |= {name: sale["amount"] + value for name, value in added.items()}
                wanted[json.dumps(row, sort_keys=True)] += 1
        topic = committed(world().cluster.bootstrap, f"derived-{self._source.mark}")
        found = Counter(json.dumps(json.loads(one.value() or b""), sort_keys=True) for one in topic)
        self._outcome.lost += (wanted - found).total()
        self._outcome.duplicated += (found - wanted).total()


def _sale(number: int) -> dict[str, Any]:
    return {
        "sale": number,
        "account": f"a{number % 3}",
        "amount": number % 9,
        "parts": [number],
        "at": "2026-03-01T12:00:00Z",
        "note": "n",
    }
