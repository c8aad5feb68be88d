"""X32, amplification: requests that are small to send and may be large to answer, to keep or to compute.

Every API that the broker offers is tried, by requests as crowded as the limits allow (``crowded``) and by cases of its
own (``amplifiers``): repeated names, long ids, many small allocations, patterns, wide answers. What must hold: an
answer, and the memory that the broker takes while it works and keeps afterwards, are below the bytes that were received
and 64 MB; a good client is answered throughout; SIGTERM is heard while a search is under way. In the soak the event
loop is never held for more than 100 ms, by the pings of a process of its own.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

from bench.faults.amplifiers import CASES, prepare
from bench.faults.attacker import ALLOWED_BYTES, Amplified, Attacker
from bench.faults.bystander import Bystander
from bench.faults.connection import Gone
from bench.faults.crowded import KINDS, crowded
from bench.faults.outcome import Outcome
from bench.faults.pings import Pings
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.workplace import workplace
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = ["UNPROTECTED", "named_cases", "run", "share_of"]

FAULT = "X32"
UNPROTECTED = {
    "response-limit": r"MB of memory|were answered with",
    "pending-limit": r"MB of memory",
    "session-limit": r"MB of memory",
    "pattern-limit": r"another client waited",
}

_HELD_MS_MAX = 100.0
_ADDRESS_BYTES_MAX = 4 << 30
_STOP_S_MAX = 20.0
_SETTLED_S = 0.05
#: What shows that a protection is missing.
_CAUGHT_BY = {
    "response-limit": ("DESCRIBE_GROUPS one_wide_group_again", "OFFSET_FETCH all_offsets_of_a_group_again"),
    "pending-limit": ("JOIN_GROUP ids_that_are_never_joined_with",),
    "session-limit": ("FETCH sessions_of_unknown_topics",),
    "pattern-limit": ("LIST_TRANSACTIONS patterns",),
}

Case = Callable[[Attacker], None]


def named_cases() -> dict[str, Case]:
    """All cases of all APIs, by the API and what is done."""
    found: dict[str, Case] = {}
    for api, own in CASES.items():
        for kind in KINDS:
            found[f"{api.name} {kind}"] = _crowded_case(api, kind)
        for case in own:
            found[f"{api.name} {case.__name__}"] = case
    return found


def share_of(seed: int, count: int) -> tuple[str, ...]:
    """Some of the crowded requests, which take a moment each; every seed has others."""
    crowded_ones = [f"{api.name} {kind}" for api in CASES for kind in KINDS]
    return tuple(random.Random(seed).sample(crowded_ones, count))


def _crowded_case(api: Api, kind: str) -> Case:
    def case(attacker: Attacker) -> None:
        attacker.ask(api, crowded(api, kind))

    return case


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "response-limit",
    only: tuple[str, ...] = (),
    timed: bool = True,
) -> Outcome:
    """``only`` some of the cases; without ``timed``, nobody looks how long the event loop is held."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    starter = [] if protected else ["--without", without]
    cases = named_cases()
    names = list(only or (cases if protected else _CAUGHT_BY[without]))
    rng.shuffle(names)
    outcome.cases = len(names)
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, forked=True) as broker,
    ):
        broker.start()
        # A broker that holds no limit shall not take the machine with it.
        resource.prlimit(broker.pid, resource.RLIMIT_AS, (_ADDRESS_BYTES_MAX, _ADDRESS_BYTES_MAX))
        bystander = Bystander(broker.port, pause_s=0.01)
        bystander.prepare()
        try:
            with (
                Attacker(broker.port, rng) as scene,
                Pings(broker.port if (timed if protected else without == "pattern-limit") else None) as pings,
            ):
                prepare(scene)
                bystander.start()
                for name in names:
                    _try(name, cases[name], broker, rng, outcome, pings, patient=protected)
                    if outcome.problems and not protected:
                        break
            broker.expect_alive()
            if protected:
                _stop_in_a_search(broker, rng, outcome, bystander, timed=timed)
        except (BrokerDied, Gone) as failure:
            outcome.problems.append(f"{type(failure).__name__}: {failure}")
        outcome.problems += bystander.finish(60.0 if protected else 1.0)
        outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
        outcome.peak_rss_mb = max(broker.peak_rss_mb, broker.rss_mb("VmHWM") if broker.runs else 0.0)
    return outcome


def _try(
    name: str,
    case: Case,
    broker: BrokerProcess,
    rng: random.Random,
    outcome: Outcome,
    pings: Pings,
    *,
    patient: bool,
) -> None:
    outcome.hits += 1
    base = _measure_from_here(broker)
    began = time.monotonic()
    with Attacker(broker.port, rng, timeout_s=60.0 if patient else 8.0) as attacker:
        try:
            case(attacker)
        except Amplified as amplified:
            outcome.problems.append(f"{name}: {amplified}")
        except Gone as gone:
            outcome.problems.append(f"{name}: {gone}")
        time.sleep(_SETTLED_S)
        grown = broker.rss_mb("VmHWM") * (1 << 20) - base
        if grown > attacker.sent_bytes + ALLOWED_BYTES:
            outcome.problems.append(
                f"{name}: {attacker.sent_bytes / 1e6:.2f} MB cost {grown / 1e6:.0f} MB of memory"
            )
    held_ms = pings.slowest_ms(began, time.monotonic())
    outcome.figures["held_ms"] = max(outcome.figures.get("held_ms", 0.0), held_ms)
    if held_ms > _HELD_MS_MAX:
        outcome.problems.append(f"{name}: another client waited {held_ms:.0f} ms for its answer")


def _measure_from_here(broker: BrokerProcess) -> float:
    """What the broker has now; from now on the kernel notes the most that it ever has."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    return broker.rss_mb() * (1 << 20)


def _stop_in_a_search(
    broker: BrokerProcess, rng: random.Random, outcome: Outcome, bystander: Bystander, *, timed: bool
) -> None:
    """SIGTERM while a long search, and a wide answer that nobody reads, are under way."""
    outcome.problems += bystander.finish(60.0)
    with Attacker(broker.port, rng) as attacker:
        search = m.ListTransactionsRequest(transactional_id_pattern="(?:a|b)*a(?:a|b){100}c")
        attacker.send(Api.LIST_TRANSACTIONS, search, 2, connection=attacker.connect())
        wide = m.DescribeGroupsRequest(groups=["group"] * 1_000)
        attacker.send(Api.DESCRIBE_GROUPS, wide, 5, connection=attacker.connect())
        time.sleep(_SETTLED_S)
        began = time.monotonic()
        code = broker.stop()
        took_s = time.monotonic() - began
    outcome.figures["stop_s"] = took_s
    if code:
        outcome.problems.append(f"SIGTERM during a search ended the broker with {code}")
    if timed and took_s > _STOP_S_MAX:
        outcome.problems.append(f"SIGTERM was heard after {took_s:.0f} s")
