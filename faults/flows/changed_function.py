"""Fault X31, a changed function: the source of a flow changes in one place between two starts.

The change is random: a column after the 25th (Spark prints only 25), a field of a struct, a filter, a row of a constant
list that the flow joins, a closure variable, a default argument, a global variable, an attribute of a module, the
contents of a container, the key of the topic, or whether an input field is required. The next start must raise
``FlowChanged`` before it writes a row, and must not begin a new generation. A start with a reformatted source must
continue. The first case of each run has input: its output topic must contain exactly the rows of the original function,
which the oracle computes.
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

from faults.committed_records import committed
from faults.flows.function_sources import KINDS, AppSource, draw_source
from faults.flows.shared_world import jvm_peak_mb, world
from faults.outcome import Outcome
from faults.patch import patched
from headrace.app import App
from headrace.flow.errors import FlowChanged

__all__ = ["RUNS", "UNPROTECTED", "run"]

FAULT = "X31"
RUNS = 20
UNPROTECTED = {"comparison": r"was not detected", "whole-plan": r"was not detected"}
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
    """``with_input``: the flow of the first case also derives rows, which takes longer."""
    outcome = Outcome(FAULT, seed, cases=0)
    rng = random.Random(f"{FAULT} {seed}")
    with tempfile.TemporaryDirectory(prefix="headrace-x31-") as home:
        for number in range(cases):
            has_input = with_input and number == 0
            kind = "columns" if has_input else rng.choice(tuple(KINDS))
            source = draw_source(rng, kind, uuid.uuid4().hex[:8])
            change = _Change(source, rng, Path(home), outcome)
            with contextlib.nullcontext() if protected else _without(without):
                change.run_with_input() if has_input else change.run()
            outcome.cases += 1
            if not protected and outcome.has_finding(UNPROTECTED[without]):
                break
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


@contextlib.contextmanager
def _without(protection: str) -> Iterator[None]:
    from headrace.flow import flow_state
    from headrace.flow.compile import compiler

    if protection == "comparison":
        with patched(flow_state, "_expect_same_function", lambda *_: None):
            yield
    else:
        with patched(compiler, "fingerprint", _truncated_plan):
            yield


def _truncated_plan(flow: Any, plan: Any, output: Any, schema: Any) -> str:
    """Return the plan as Spark prints it, and the declarations. Spark prints at most 25 fields per operator, and only
    the names of Python functions.
    """
    analyzed: Any = output._jdf.queryExecution().analyzed()
    declared = [flow.writes.key, *((topic.name, topic.late) for topic in flow.reads)]
    return f"2:{analyzed.canonicalized().toString()} {schema.fields} {declared}"


class _Change:
    """An app's source, a changed version of it, and a reformatted version."""

    def __init__(self, source: AppSource, rng: random.Random, home: Path, outcome: Outcome) -> None:
        self._source = source
        self._rng = rng
        self._home = home
        self._outcome = outcome
        self._placeholder, self._changed = source.changed(rng)
        self._reformatted = AppSource(source.kind, source.suffix, source.choices, is_reformatted=True)

    @property
    def _description(self) -> str:
        before, after = (source.choices[self._placeholder] for source in (self._source, self._changed))
        return f"{self._source.kind}: {self._placeholder} from {before} to {after}"

    def run(self) -> None:
        """Start each version up to the point where its first batch would begin."""
        self._open(self._source)
        before = self._records()
        self._expect_changed(lambda: self._open(self._changed))
        if self._records() != before:
            self._outcome.problems.append(
                f"{self._description}: (generations, rows) changed from {before} to {self._records()}"
            )
        self._expect_unchanged(lambda: self._open(self._reformatted))

    def _expect_changed(self, start: Any) -> None:
        self._outcome.hits += 1
        with contextlib.suppress(FlowChanged):
            start()
            self._outcome.problems.append(f"{self._description} was not detected")

    def _expect_unchanged(self, start: Any) -> None:
        try:
            start()
        except FlowChanged as error:
            self._outcome.problems.append(
                f"{self._source.kind} is only reformatted, but is reported as changed: {error}"
            )

    def _open(self, source: AppSource) -> None:
        from headrace.flow.compile.compiler import compile_app
        from headrace.flow.context import FlowContext, FlowOptions
        from headrace.flow.flow_state import open_flow
        from headrace.flow.generation_choice import choose_generation
        from headrace.flow.ownership import Ownership, open_writer

        flow_world, app = world(), source.load(self._home)
        flow_world.declare(app)
        [compiler], _ = compile_app(flow_world.spark, app)
        flow, options = compiler.flow, FlowOptions.of(flow_world.settings())
        owner = Ownership(flow_world.cluster, flow, options.transaction_timeout_ms)
        context = FlowContext(flow_world.spark, flow_world.cluster, app, compiler, {}, options)
        with contextlib.closing(open_writer(flow_world.cluster, flow)) as writer:
            open_flow(context, writer, owner, choose_generation(context))

    def _records(self) -> tuple[int, int]:
        """The number of generations, and the number of rows in the topic."""
        suffix, bootstrap = self._source.suffix, world().cluster.bootstrap
        progress = [
            json.loads(message.value() or b"")
            for message in committed(bootstrap, f"changes-{suffix}.derive-{suffix}.progress")
        ]
        generations = sum(record["record"] == "generation" for record in progress)
        return generations, len(committed(bootstrap, f"derived-{suffix}"))

    # With input

    def run_with_input(self) -> None:
        app = self._source.load(self._home)
        world().declare(app)
        self._write(app, 0)
        self._run(app)
        self._write(app, _RECORDS)
        self._expect_changed(lambda: self._run(self._changed.load(self._home)))
        self._expect_unchanged(lambda: self._run(self._reformatted.load(self._home)))
        self._judge()

    def _run(self, app: App) -> None:
        with world().running(app, follow=False) as run:
            run.wait_until_derived()

    def _write(self, app: App, first: int) -> None:
        rows = [_sale(number) for number in range(first, first + _RECORDS)]
        world().write(app.topics[0], [(str(row["sale"]).encode(), json.dumps(row).encode()) for row in rows])

    def _judge(self) -> None:
        choices = self._source.choices
        added = {
            name: int(value) for name, value in choices.items() if name[0] == "c" and name[1:].isdecimal()
        }
        condition = choices["filter"].replace("F.col('amount')", "amount")
        expected: Counter[str] = Counter()
        for sale in map(_sale, range(2 * _RECORDS)):
            if eval(condition, {"amount": sale["amount"]}):
                row = {name: sale[name] for name in ("sale", "account", "amount")}
                row |= {name: sale["amount"] + value for name, value in added.items()}
                expected[json.dumps(row, sort_keys=True)] += 1
        records = committed(world().cluster.bootstrap, f"derived-{self._source.suffix}")
        actual = Counter(
            json.dumps(json.loads(message.value() or b""), sort_keys=True) for message in records
        )
        self._outcome.lost += (expected - actual).total()
        self._outcome.duplicated += (actual - expected).total()


def _sale(number: int) -> dict[str, Any]:
    return {
        "sale": number,
        "account": f"a{number % 3}",
        "amount": number % 9,
        "parts": [number],
        "at": "2026-03-01T12:00:00Z",
        "note": "n",
    }
