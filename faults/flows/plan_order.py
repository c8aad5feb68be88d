"""Fault X29, Spark's plan reorders rows: random flows read several partitions in small batches. Spark plans them with
shuffles or broadcasts, adaptive or not, compiled or interpreted.

The oracle (``faults.flows.tree_oracle``) computes in plain Python which rows each key must have, and in which order. It
uses only what a stock consumer reads: the input, and the offset ranges of batches in the progress records. The order
must hold for a flow that ran once or was restarted, and for the same flow rebuilt with other settings. The product's
verifier must agree, and must reject a generation whose rows were written in the wrong order. If the product refuses a
flow, the run counts it and draws another.

A hit is a flow for which Spark delivered the rows of a key in an order that differs from the log's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from faults.flows.random_case import FlowCase, PlanSetting
from faults.flows.random_tree import KINDS, draw_flow
from faults.flows.shared_world import jvm_peak_mb
from faults.outcome import Outcome
from faults.patch import patched
from headrace.flow.errors import FlowError
from headrace.model.errors import AppMistakes

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["UNPROTECTED", "run"]

FAULT = "X29"
UNPROTECTED = {
    "row-order": r"order of key",
    "first-duplicate": r"(rows|order) of key",
    "tie-order": r"(rows|order) of key",
}
_KINDS_AFFECTED = {
    "row-order": ("table", "duplicates", "streams"),
    "first-duplicate": ("duplicates",),
    "tie-order": ("aggregate",),
}
"""For each protection, the kinds of flows that need it."""
_CASES = 10
_SHUFFLED_EVERY = 3
_RESTARTED_SHARE = 0.25
_VERIFIED_EVERY = 4
_PLANTED_EVERY = 10
_REFUSED_MAX = 0.25


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "row-order",
    cases: int = _CASES,
    verified: bool = True,
    planted: bool = True,
) -> Outcome:
    """``verified``: the product verifies some cases too. ``planted``: some cases get a generation with wrong rows."""
    outcome = Outcome(FAULT, seed, cases=0)
    rng = random.Random(f"{FAULT} {seed}")
    refused = 0
    while outcome.cases < cases and refused <= cases:
        number = outcome.cases
        kind = rng.choice(KINDS if protected else _KINDS_AFFECTED[without])
        tree = draw_flow(rng, kind, shuffles=not protected or number % _SHUFFLED_EVERY == 0)
        case = FlowCase(random.Random(rng.random()), tree)
        try:
            if protected:
                _run_case(
                    case,
                    outcome,
                    verified=verified and number % _VERIFIED_EVERY == 0,
                    planted=planted and number % _PLANTED_EVERY == 0,
                )
            else:
                _run_case_without(case, outcome, without)
        except AppMistakes as mistakes:
            refused += 1
            outcome.figures[f"refused: {mistakes.mistakes[0].message.split(' ', 2)[2]}"] = 1
            continue
        except FlowError as error:
            outcome.problems.append(f"{case.description}: {error!r}")
        outcome.cases += 1
        if not protected and outcome.has_finding(UNPROTECTED[without]):
            break
    outcome.figures["refused"] = refused
    if refused > cases * _REFUSED_MAX + 1:
        outcome.problems.append(f"{refused} flows were refused, and {outcome.cases} ran")
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


def _run_case(case: FlowCase, outcome: Outcome, *, verified: bool, planted: bool) -> None:
    rng, records = case.rng, case.rng.randint(80, 240)
    with _observed_order(_as_ordered) as reordered:
        case.write(records)
        case.run(PlanSetting.draw(rng, records))
        if rng.random() < _RESTARTED_SHARE:
            case.write(records // 2)
            case.run(PlanSetting.draw(rng, records))
        _add_differences(case, outcome, 1)
        case.run(PlanSetting.draw(rng, records), rebuild=True)
        _add_differences(case, outcome, 2)
    outcome.hits += bool(reordered)
    if verified and (verdict := case.verify()) != "proven":
        outcome.problems.append(f"{case.description}: the verification failed: {verdict}")
    if planted:
        _plant(case, outcome, PlanSetting.draw(rng, records))


def _plant(case: FlowCase, outcome: Outcome, setting: PlanSetting) -> None:
    """Write a generation with rows in the wrong order. The verifier must report an error exactly if the oracle does."""
    with _observed_order(_first_value_only() if case.tree.aggregates else _reversed):
        case.run(setting, rebuild=True)
    is_wrong, verdict = case.differences(3).exists, case.verify()
    if is_wrong == (verdict == "proven"):
        outcome.problems.append(
            f"{case.description}: rows are {'wrong' if is_wrong else 'correct'}, but the verdict is {verdict}"
        )
    outcome.figures["planted"] = outcome.figures.get("planted", 0) + is_wrong


def _run_case_without(case: FlowCase, outcome: Outcome, without: str) -> None:
    records = case.rng.randint(150, 300)
    case.write(records)
    with _without(without):
        case.run(PlanSetting.draw(case.rng, records))
    _add_differences(case, outcome, 1)


def _add_differences(case: FlowCase, outcome: Outcome, generation: int) -> None:
    difference = case.differences(generation)
    outcome.lost += difference.lost
    outcome.duplicated += difference.duplicated
    outcome.problems += [f"{case.description}: {problem}" for problem in difference.problems]


# The product's ordering, observed or removed


@contextmanager
def _observed_order(write: Callable[[pa.Table, pa.Table], pa.Table]) -> Iterator[list[int]]:
    """Call ``write`` with the rows of a batch as Spark delivered them and as the product orders them; ``write`` returns
    the rows to write. Yield a list that gets an entry for each batch in which Spark delivered rows of a key in another
    order.
    """
    from headrace.flow import batch_rows

    in_product_order, reordered = batch_rows.sort_rows, list[int]()

    def watch(rows: pa.Table, *, ties: bool) -> pa.Table:
        delivered, ordered = rows.select(["key", "value"]), in_product_order(rows, ties=ties)
        if _by_key(delivered) != _by_key(ordered):
            reordered.append(rows.num_rows)
        return write(delivered, ordered)

    with patched(batch_rows, "sort_rows", watch):
        yield reordered


def _by_key(rows: pa.Table) -> dict[Any, list[Any]]:
    values_by_key: dict[Any, list[Any]] = {}
    for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
        values_by_key.setdefault(key, []).append(value)
    return values_by_key


def _as_ordered(_: pa.Table, ordered: pa.Table) -> pa.Table:
    return ordered


def _as_delivered(delivered: pa.Table, _: pa.Table) -> pa.Table:
    return delivered


def _reversed(_: pa.Table, ordered: pa.Table) -> pa.Table:
    import pyarrow as pa

    return ordered.take(pa.array(range(ordered.num_rows - 1, -1, -1), pa.int64()))


def _first_value_only() -> Callable[[pa.Table, pa.Table], pa.Table]:
    """Return a function that gives every row of a key the key's first value."""
    import pyarrow as pa

    first: dict[Any, Any] = {}

    def write(_: pa.Table, ordered: pa.Table) -> pa.Table:
        keys = ordered["key"].to_pylist()
        values = [
            first.setdefault(key, value)
            for key, value in zip(keys, ordered["value"].to_pylist(), strict=True)
        ]
        return pa.table([ordered["key"], pa.array(values, ordered["value"].type)], names=["key", "value"])

    return write


@contextmanager
def _without(protection: str) -> Iterator[None]:
    from headrace.flow.compile import lineage
    from headrace.flow.compile.plan import PlanNodes

    if protection == "row-order":
        with _observed_order(_as_delivered):
            yield
    elif protection == "first-duplicate":
        with patched(PlanNodes, "sorted_by_key", lambda self, keys, order, child: child):
            yield
    else:
        with patched(lineage, "has_ties", lambda aggregate: False):
            yield
