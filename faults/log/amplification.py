"""Fault X32, amplification: requests that are small to send, but expensive to answer, to store or to compute.

Every API of the broker receives requests that are as full as the limits allow (``crowded_requests``), and specific
cases (``amplifiers``): repeated names, long ids, many small allocations, patterns, large responses. What must hold: a
response, and the broker's memory during and after the work, stay below the received bytes plus 64 MB. A well-behaved
client is served throughout. SIGTERM stops the broker even during a long pattern search. In the soak the event loop is
never blocked for more than 100 ms, as measured by a ping process.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

from faults.log.amplifiers import CASES, prepare
from faults.log.attacker import ALLOWED_BYTES, Amplified, Attacker
from faults.log.bystander import Bystander
from faults.log.crowded_requests import KINDS, crowded
from faults.log.ping_process import Pings
from faults.outcome import Outcome
from faults.protocol.connection import Gone
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = ["UNPROTECTED", "named_cases", "random_cases", "run"]

FAULT = "X32"
UNPROTECTED = {
    "response-limit": r"MB of memory|got a response of",
    "pending-limit": r"MB of memory",
    "session-limit": r"MB of memory",
    "pattern-limit": r"another client waited",
}

_BLOCKED_MS_MAX = 100.0
_ADDRESS_BYTES_MAX = 4 << 30
_STOP_S_MAX = 20.0
_SETTLE_S = 0.05
#: The cases that must report a problem without the protection.
_REVEALED_BY = {
    "response-limit": ("DESCRIBE_GROUPS one_wide_group_again", "OFFSET_FETCH all_offsets_of_a_group_again"),
    "pending-limit": ("JOIN_GROUP ids_that_are_never_joined_with",),
    "session-limit": ("FETCH sessions_of_unknown_topics",),
    "pattern-limit": ("LIST_TRANSACTIONS patterns",),
}

Case = Callable[[Attacker], None]


def named_cases() -> dict[str, Case]:
    """All cases of all APIs, by API and description."""
    cases: dict[str, Case] = {}
    for api, specific_cases in CASES.items():
        for kind in KINDS:
            cases[f"{api.name} {kind}"] = _crowded_case(api, kind)
        for case in specific_cases:
            cases[f"{api.name} {case.__name__}"] = case
    return cases


def random_cases(seed: int, count: int) -> tuple[str, ...]:
    """Return ``count`` of the crowded requests, which the seed selects. Sending all of them would take too long."""
    crowded_ones = [f"{api.name} {kind}" for api in CASES for kind in KINDS]
    return tuple(random.Random(seed).sample(crowded_ones, count))


def _crowded_case(api: Api, kind: str) -> Case:
    def case(attacker: Attacker) -> None:
        attacker.call(api, crowded(api, kind))

    return case


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "response-limit",
    selected_cases: tuple[str, ...] = (),
    measures_blocking: bool = True,
) -> Outcome:
    """``only`` selects some of the cases. With ``timed``, the run also measures how long the event loop is blocked."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    starter = [] if protected else ["--without", without]
    cases = named_cases()
    names = list(selected_cases or (cases if protected else _REVEALED_BY[without]))
    rng.shuffle(names)
    outcome.cases = len(names)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, forked=True) as broker,
    ):
        broker.start()
        # A broker without a limit must not use up the memory of the machine.
        resource.prlimit(broker.pid, resource.RLIMIT_AS, (_ADDRESS_BYTES_MAX, _ADDRESS_BYTES_MAX))
        bystander = Bystander(broker.port, pause_s=0.01)
        bystander.prepare()
        try:
            with (
                Attacker(broker.port, rng) as scene,
                Pings(
                    broker.port if (measures_blocking if protected else without == "pattern-limit") else None
                ) as pings,
            ):
                prepare(scene)
                bystander.start()
                for name in names:
                    _run_case(name, cases[name], broker, rng, outcome, pings, waits_long=protected)
                    if outcome.problems and not protected:
                        break
            broker.expect_alive()
            if protected:
                _stop_in_a_search(broker, rng, outcome, bystander, measures_blocking=measures_blocking)
        except (BrokerDied, Gone) as failure:
            outcome.problems.append(f"{type(failure).__name__}: {failure}")
        outcome.problems += bystander.finish(60.0 if protected else 1.0)
        outcome.problems += [
            f"the broker logged an unexpected exception:\n{trace}" for trace in broker.unexpected_exceptions()
        ]
        outcome.peak_rss_mb = max(broker.peak_rss_mb, broker.rss_mb("VmHWM") if broker.is_running else 0.0)
    return outcome


def _run_case(
    name: str,
    case: Case,
    broker: BrokerProcess,
    rng: random.Random,
    outcome: Outcome,
    pings: Pings,
    *,
    waits_long: bool,
) -> None:
    outcome.hits += 1
    base = _reset_peak(broker)
    began = time.monotonic()
    with Attacker(broker.port, rng, timeout_s=60.0 if waits_long else 8.0) as attacker:
        try:
            case(attacker)
        except Amplified as amplified:
            outcome.problems.append(f"{name}: {amplified}")
        except Gone as gone:
            outcome.problems.append(f"{name}: {gone}")
        time.sleep(_SETTLE_S)
        growth_bytes = broker.rss_mb("VmHWM") * (1 << 20) - base
        if growth_bytes > attacker.sent_bytes + ALLOWED_BYTES:
            outcome.problems.append(
                f"{name}: {attacker.sent_bytes / 1e6:.2f} MB cost {growth_bytes / 1e6:.0f} MB of memory"
            )
    blocked_ms = pings.slowest_ms(began, time.monotonic())
    outcome.figures["blocked_ms"] = max(outcome.figures.get("blocked_ms", 0.0), blocked_ms)
    if blocked_ms > _BLOCKED_MS_MAX:
        outcome.problems.append(f"{name}: another client waited {blocked_ms:.0f} ms for its response")


def _reset_peak(broker: BrokerProcess) -> float:
    """Return the broker's current memory in bytes, and reset the kernel's peak."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    return broker.rss_mb() * (1 << 20)


def _stop_in_a_search(
    broker: BrokerProcess,
    rng: random.Random,
    outcome: Outcome,
    bystander: Bystander,
    *,
    measures_blocking: bool,
) -> None:
    """Send SIGTERM during a long pattern search, and during a large response that the client does not read."""
    outcome.problems += bystander.finish(60.0)
    with Attacker(broker.port, rng) as attacker:
        search = m.ListTransactionsRequest(transactional_id_pattern="(?:a|b)*a(?:a|b){100}c")
        attacker.send(Api.LIST_TRANSACTIONS, search, 2, connection=attacker.connect())
        wide = m.DescribeGroupsRequest(groups=["group"] * 1_000)
        attacker.send(Api.DESCRIBE_GROUPS, wide, 5, connection=attacker.connect())
        time.sleep(_SETTLE_S)
        began = time.monotonic()
        code = broker.stop()
        took_s = time.monotonic() - began
    outcome.figures["stop_s"] = took_s
    if code:
        outcome.problems.append(f"SIGTERM during a search ended the broker with {code}")
    if measures_blocking and took_s > _STOP_S_MAX:
        outcome.problems.append(f"the broker exited only {took_s:.0f} s after SIGTERM")
