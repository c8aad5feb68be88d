"""X29, the plan reorders: flows that are drawn at random, over input of several partitions, in small batches, under
plans that shuffle or broadcast, adapt or not, are compiled or interpreted.

The oracle (``bench.faults.flow_oracle``) works out in plain Python which rows each key must have, in which order, from
what a stock consumer reads: the input, and the bounds of batches in the progress records. That must hold for a flow
that ran in one go or in two, and for the same flow rebuilt under other settings. The product's own proof must agree,
and must object to a generation whose rows were written in the wrong order. A flow that the product refuses is counted
and drawn again.

A hit is a flow for which Spark handed over the rows of some key in another order than that of the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.faults.flow_case import FlowCase, Setting
from bench.faults.flow_world import jvm_peak_mb
from bench.faults.outcome import Outcome
from bench.faults.random_flows import KINDS, draw_flow
from bench.faults.sim_loop import patched
from headrace.flow.errors import FlowError
from headrace.model.errors import AppMistakes

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["UNPROTECTED", "run"]

FAULT = "X29"
UNPROTECTED = {"order": r"order of key", "first": r"(rows|order) of key", "ties": r"(rows|order) of key"}
_KINDS_HARMED = {
    "order": ("table", "duplicates", "streams"),
    "first": ("duplicates",),
    "ties": ("aggregate",),
}
"""By protection, the kinds of flows that need it."""
_CASES = 10
_SHUFFLED_EVERY = 3
_TWO_GOES = 0.25
_PROVEN_EVERY = 4
_PLANTED_EVERY = 10
_REFUSED_MAX = 0.25


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "order",
    cases: int = _CASES,
    proven: bool = True,
    planted: bool = True,
) -> Outcome:
    """``proven`` and ``planted``: whether some cases are proven by the product too, and some get a wrong generation."""
    outcome = Outcome(FAULT, seed, cases=0)
    rng = random.Random(f"{FAULT} {seed}")
    refused = 0
    while outcome.cases < cases and refused <= cases:
        number = outcome.cases
        kind = rng.choice(KINDS if protected else _KINDS_HARMED[without])
        tree = draw_flow(rng, kind, shuffles=not protected or number % _SHUFFLED_EVERY == 0)
        case = FlowCase(random.Random(rng.random()), tree)
        try:
            if protected:
                _play(
                    case,
                    outcome,
                    proven=proven and number % _PROVEN_EVERY == 0,
                    planted=planted and number % _PLANTED_EVERY == 0,
                )
            else:
                _play_without(case, outcome, without)
        except AppMistakes as mistakes:
            refused += 1
            outcome.figures[f"refused: {mistakes.mistakes[0].message.split(' ', 2)[2]}"] = 1
            continue
        except FlowError as error:
            outcome.problems.append(f"{case.told}: {error!r}")
        outcome.cases += 1
        if not protected and outcome.shows(UNPROTECTED[without]):
            break
    outcome.figures["refused"] = refused
    if refused > cases * _REFUSED_MAX + 1:
        outcome.problems.append(f"{refused} flows were refused, and {outcome.cases} ran")
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


def _play(case: FlowCase, outcome: Outcome, *, proven: bool, planted: bool) -> None:
    rng, records = case.rng, case.rng.randint(80, 240)
    with _watched(_as_ordered) as reordered:
        case.write(records)
        case.run(Setting.draw(rng, records))
        if rng.random() < _TWO_GOES:
            case.write(records // 2)
            case.run(Setting.draw(rng, records))
        _note(case, outcome, 1)
        case.run(Setting.draw(rng, records), rebuild=True)
        _note(case, outcome, 2)
    outcome.hits += bool(reordered)
    if proven and (verdict := case.proof()) != "proven":
        outcome.problems.append(f"{case.told}: not proven: {verdict}")
    if planted:
        _plant(case, outcome, Setting.draw(rng, records))


def _plant(case: FlowCase, outcome: Outcome, setting: Setting) -> None:
    """A generation with rows in the wrong order: the proof must object wherever the oracle does."""
    with _watched(_stale() if case.tree.aggregates else _reversed):
        case.run(setting, rebuild=True)
    is_wrong, verdict = case.differences(3).found, case.proof()
    if is_wrong == (verdict == "proven"):
        outcome.problems.append(
            f"{case.told}: rows are {'wrong' if is_wrong else 'right'}, the proof says {verdict}"
        )
    outcome.figures["planted"] = outcome.figures.get("planted", 0) + is_wrong


def _play_without(case: FlowCase, outcome: Outcome, without: str) -> None:
    records = case.rng.randint(150, 300)
    case.write(records)
    with _without(without):
        case.run(Setting.draw(case.rng, records))
    _note(case, outcome, 1)


def _note(case: FlowCase, outcome: Outcome, generation: int) -> None:
    difference = case.differences(generation)
    outcome.lost += difference.lost
    outcome.duplicated += difference.duplicated
    outcome.problems += [f"{case.told}: {problem}" for problem in difference.problems]


# The order of the product, watched or taken out


@contextmanager
def _watched(write: Callable[[pa.Table, pa.Table], pa.Table]) -> Iterator[list[int]]:
    """``write`` is given the rows of a batch as they came and as the product orders them, and says what is written.
    Gives the batches in which rows of a key came in another order.
    """
    from headrace.flow import batch_rows

    product, reordered = batch_rows.in_order, list[int]()

    def watch(rows: pa.Table, *, ties: bool) -> pa.Table:
        came, ordered = rows.select(["key", "value"]), product(rows, ties=ties)
        if _by_key(came) != _by_key(ordered):
            reordered.append(rows.num_rows)
        return write(came, ordered)

    with patched(batch_rows, "in_order", watch):
        yield reordered


def _by_key(rows: pa.Table) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
        found.setdefault(key, []).append(value)
    return found


def _as_ordered(_: pa.Table, ordered: pa.Table) -> pa.Table:
    return ordered


def _as_they_came(came: pa.Table, _: pa.Table) -> pa.Table:
    return came


def _reversed(_: pa.Table, ordered: pa.Table) -> pa.Table:
    import pyarrow as pa

    return ordered.take(pa.array(range(ordered.num_rows - 1, -1, -1), pa.int64()))


def _stale() -> Callable[[pa.Table, pa.Table], pa.Table]:
    """Each key keeps its first value."""
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
    from headrace.flow import lineage
    from headrace.flow.plan_nodes import PlanNodes

    if protection == "order":
        with _watched(_as_they_came):
            yield
    elif protection == "first":
        with patched(PlanNodes, "sorted_by_key", lambda self, keys, order, child: child):
            yield
    else:
        with patched(lineage, "has_ties", lambda aggregate: False):
            yield
