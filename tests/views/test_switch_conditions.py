"""When a flow switches to another generation, and when a generation is dropped. The test writes the records of the
flows' drivers, so no Spark runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.generations_writer import (
    GenerationsWriter,
    cancel_abandoned_switches,
    drop_generation,
)
from headrace.client.progress import current
from headrace.flow.generation_choice import begin_generation, generation_to_deploy, may_derive_beside
from headrace.flow.ownership import Ownership, open_writer
from headrace.flow.switch import difference
from headrace.flow.switch import operation as operation_module
from headrace.flow.switch.comparison import Comparison
from headrace.flow.switch.operation import SwitchOperation, SwitchRefused, expect_ready, switch_now
from headrace.flow.switch.policy import SwitchPolicy
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations, GenerationRead
from headrace.runtime.beside import KeptGenerations
from headrace.testing.clock import DrivenClock
from tests.support.rental import Rental

DEAD = "elsewhere:1:dead"


@pytest.fixture
def rental(cluster: Cluster) -> Rental:
    return Rental(cluster)


@pytest.fixture
def rebuilt(rental: Rental) -> Rental:
    """Both flows are rebuilt. The new generation of ``know`` has derived only one of the four rows, and that of
    ``count`` has read this row.
    """
    rental.write(4)
    rows = {f"b{number}": 1 for number in range(4)}
    rental.derive(rental.know, rental.begin(rental.know), rows)
    rental.derive(rental.count, rental.begin(rental.count), rows)
    known = rental.begin(rental.know)
    rental.derive(rental.know, known, {"b0": 1}, read=1)
    rental.derive(rental.count, rental.begin(rental.count, known.topic), {"b0": 1})
    return rental


def new(rental: Rental, flow: Flow) -> Entry:
    return rental.generations(flow).expect(2)


def poll_until_due(policy: SwitchPolicy, rental: Rental, entry: Entry, clock: DrivenClock) -> None:
    def is_due() -> bool:
        progress = current(rental.cluster, entry.progress)
        assert progress is not None
        policy.poll(progress.last)
        clock.advance(1)
        return policy.is_due

    until(is_due, "the switch is due")


def poll_until_within_limits(rental: Rental) -> None:
    """The driver of flow ``know`` compares its rows before flow ``count`` may switch."""
    clock, entry = DrivenClock(), new(rental, rental.know)
    policy = rental.policy(rental.know, entry, clock, [])

    def is_within_limits() -> bool:
        progress = current(rental.cluster, entry.progress)
        assert progress is not None
        policy.poll(progress.last)
        clock.advance(1)
        return new(rental, rental.know).is_within_limits

    until(is_within_limits, "the difference is within the limits")
    assert not policy.is_switching
    policy.close()


def test_a_flow_downstream_does_not_switch_to_rows_of_a_generation_that_needs_the_operator(
    rebuilt: Rental,
) -> None:
    rebuilt.derive(rebuilt.know, new(rebuilt, rebuilt.know), {"b0": 2}, read=4)
    entry = new(rebuilt, rebuilt.count)
    rebuilt.derive(rebuilt.count, entry, {f"b{number}": 2 for number in range(4)})
    clock, notes = DrivenClock(), list[str]()
    know = rebuilt.policy(rebuilt.know, new(rebuilt, rebuilt.know), clock, notes)
    count = rebuilt.policy(rebuilt.count, entry, clock, notes)
    for _ in range(4):
        for policy, number in ((know, new(rebuilt, rebuilt.know)), (count, entry)):
            progress = current(rebuilt.cluster, number.progress)
            assert progress is not None
            policy.poll(progress.last)
        clock.advance(2)
    assert (count.is_switching, know.is_switching) == (False, False)
    assert any("3 of 4 keys are gone" in note for note in notes)
    assert any(
        f"generation 2 of flow {rebuilt.know.name}, which it reads, is within the limits" in note
        for note in notes
    )
    know.close()


def test_a_generation_must_reach_what_the_serving_one_has_read_lately(rental: Rental) -> None:
    rental.write(4)
    first = rental.begin(rental.know)
    rental.derive(rental.know, first, {"b0": 1}, read=1)
    entry = rental.begin(rental.know)
    clock, notes = DrivenClock(), list[str]()
    policy = rental.policy(rental.know, entry, clock, notes)
    policy.poll(None)
    # It takes the new generation a minute to read what the serving one had read, which then is far ahead.
    rental.derive(rental.know, first, {"b1": 1, "b2": 1, "b3": 1})
    rental.derive(rental.know, entry, {"b0": 1}, read=1)
    clock.advance(60)
    progress = current(rental.cluster, entry.progress)
    assert progress is not None
    policy.poll(progress.last)
    assert (policy.is_switching, notes) == (False, [])
    rental.derive(rental.know, entry, {"b1": 1, "b2": 1, "b3": 1})
    poll_until_due(policy, rental, entry, clock)
    policy.close()
    rental.until_no_switch(rental.know)


def test_a_generation_covers_only_when_the_generation_upstream_has_read_all_and_so_has_it(
    rebuilt: Rental,
) -> None:
    know, count = new(rebuilt, rebuilt.know), new(rebuilt, rebuilt.count)
    assert not rebuilt.is_covered(rebuilt.count, count)
    rebuilt.derive(rebuilt.know, know, {f"b{number}": 1 for number in range(1, 4)})
    assert rebuilt.is_covered(rebuilt.know, know)
    assert not rebuilt.is_covered(rebuilt.count, count)
    rebuilt.derive(rebuilt.count, count, {f"b{number}": 1 for number in range(1, 4)})
    assert rebuilt.is_covered(rebuilt.count, count)


def test_a_flow_downstream_neither_switches_nor_waits_for_the_operator_while_history_is_derived_upstream(
    rebuilt: Rental,
) -> None:
    clock, notes = DrivenClock(), list[str]()
    entry = new(rebuilt, rebuilt.count)
    policy = rebuilt.policy(rebuilt.count, entry, clock, notes)
    progress = current(rebuilt.cluster, entry.progress)
    assert progress is not None
    for _ in range(3):
        policy.poll(progress.last)
        clock.advance(10)
    assert (policy.is_switching, policy.is_due, notes) == (False, False, [])
    rows = {f"b{number}": 2 for number in range(4)}
    rebuilt.derive(rebuilt.know, new(rebuilt, rebuilt.know), rows)
    rebuilt.derive(rebuilt.count, entry, rows)
    poll_until_within_limits(rebuilt)
    poll_until_due(policy, rebuilt, entry, clock)
    policy.switch()
    until(lambda: rebuilt.generations(rebuilt.count).serving == 2, "generation 2 serves")
    assert rebuilt.keys(rebuilt.count.writes.name)[4:] == ["b0", "b1", "b2", "b3"]


def test_an_operator_cannot_switch_a_flow_downstream_while_history_is_derived_upstream(
    rebuilt: Rental,
) -> None:
    with pytest.raises(SwitchRefused, match="has not read all that generation 1 has read"):
        expect_ready(rebuilt.cluster, rebuilt.count, 2, wait_s=0)
    with pytest.raises(SwitchRefused, match="has not read all that generation 1 has read"):
        switch_now(rebuilt.cluster, rebuilt.count, 2, wait_s=0)
    rebuilt.until_no_switch(rebuilt.count)
    assert rebuilt.generations(rebuilt.count).serving == 1
    assert rebuilt.keys(rebuilt.count.writes.name) == ["b0", "b1", "b2", "b3"]
    expect_ready(rebuilt.cluster, rebuilt.count, 2, accepts_behind=True)


def test_a_generation_without_input_switches_without_a_batch(rental: Rental) -> None:
    rental.begin(rental.know)
    entry = rental.begin(rental.know)
    clock, notes = DrivenClock(), list[str]()
    policy = rental.policy(rental.know, entry, clock, notes)
    poll_until_due(policy, rental, entry, clock)
    policy.switch()
    until(lambda: rental.generations(rental.know).serving == 2, "generation 2 serves")
    assert "generation 2 serves now" in notes[-1]


def test_a_generation_that_waits_for_the_operator_compares_again_after_half_a_minute(
    rental: Rental,
) -> None:
    rental.write(1)
    rental.derive(rental.know, rental.begin(rental.know), {"b0": 1})
    entry = rental.begin(rental.know)
    rental.derive(rental.know, entry, {})
    clock, notes = DrivenClock(), list[str]()
    policy = rental.policy(rental.know, entry, clock, notes)
    policy.poll(None)
    progress = current(rental.cluster, entry.progress)
    assert progress is not None
    clock.advance(1)
    policy.poll(progress.last)
    assert "1 of 1 keys are gone" in notes[-1]
    rental.derive(rental.know, entry, {"b0": 1})
    clock.advance(29)
    policy.poll(progress.last)
    assert (policy.is_switching, len(notes)) == (False, 1)
    clock.advance(2)
    policy.poll(progress.last)
    assert policy.is_switching
    policy.close()
    rental.until_no_switch(rental.know)


def test_the_driver_of_a_new_generation_cancels_the_switch_of_a_process_that_died_before_it_sealed_it(
    rebuilt: Rental,
) -> None:
    with GenerationsWriter(rebuilt.cluster, rebuilt.know) as writer:
        writer.write(writer.read().with_switch(2, DEAD, 0))
    entry = new(rebuilt, rebuilt.know)
    rebuilt.policy(rebuilt.know, entry, DrivenClock(), []).poll(None)
    rebuilt.until_no_switch(rebuilt.know)


def test_a_flow_cancels_an_abandoned_switch_of_a_flow_upstream(rebuilt: Rental) -> None:
    with GenerationsWriter(rebuilt.cluster, rebuilt.know) as writer:
        writer.write(writer.read().with_switch(2, DEAD, 1_000))
    cancel_abandoned_switches(rebuilt.cluster, rebuilt.app, rebuilt.count, 16_000)
    assert rebuilt.generations(rebuilt.know).switching == 2
    cancel_abandoned_switches(rebuilt.cluster, rebuilt.app, rebuilt.count, 16_001)
    rebuilt.until_no_switch(rebuilt.know)


def test_a_switch_is_extended_while_the_process_works_on_something_else(
    rebuilt: Rental, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_module, "_EXTEND_S", 0.01)
    clock = DrivenClock()
    with SwitchOperation(rebuilt.cluster, rebuilt.know, 2, clock) as operation:
        operation.begin()
        begun_ms = rebuilt.generations(rebuilt.know).switch_until_ms
        clock.advance(60)
        until(
            lambda: rebuilt.generations(rebuilt.know).switch_until_ms == begun_ms + 60_000,
            "the switch is extended",
        )
    rebuilt.until_no_switch(rebuilt.know)


def test_a_switch_that_cannot_be_extended_is_reported(
    rebuilt: Rental, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_module, "_EXTEND_S", 0.01)
    with SwitchOperation(rebuilt.cluster, rebuilt.know, 2) as operation:
        operation.begin()
        operation.check()
        with GenerationsWriter(rebuilt.cluster, rebuilt.know) as writer:
            writer.write(writer.read())

        def is_reported() -> bool:
            try:
                operation.check()
            except LogError:
                return True
            return False

        until(is_reported, "the switch reports that it was cancelled")
    rebuilt.until_no_switch(rebuilt.know)


# Dropping


def test_a_generation_is_not_dropped_while_a_flow_serves_rows_that_it_derives_from_it(
    rebuilt: Rental,
) -> None:
    rows = {f"b{number}": 2 for number in range(4)}
    rebuilt.derive(rebuilt.know, new(rebuilt, rebuilt.know), rows)
    rebuilt.derive(rebuilt.count, new(rebuilt, rebuilt.count), rows)
    switch_now(rebuilt.cluster, rebuilt.count, 2)
    with pytest.raises(GenerationRead, match=r"cannot be dropped: flow count-\w+ serves rows"):
        drop_generation(rebuilt.cluster, rebuilt.app, rebuilt.know, 2)
    assert rebuilt.cluster.topic(new(rebuilt, rebuilt.know).topic) is not None


def test_a_kept_generation_is_dropped_after_its_time_but_not_while_it_is_read(rebuilt: Rental) -> None:
    rows = {f"b{number}": 2 for number in range(4)}
    rebuilt.derive(rebuilt.know, new(rebuilt, rebuilt.know), rows)
    rebuilt.derive(rebuilt.count, new(rebuilt, rebuilt.count), rows)
    switch_now(rebuilt.cluster, rebuilt.know, 2)
    switch_now(rebuilt.cluster, rebuilt.count, 2)
    third = rebuilt.begin(rebuilt.know)
    rebuilt.derive(rebuilt.know, third, rows)
    switch_now(rebuilt.cluster, rebuilt.know, 3)
    clock, notes = DrivenClock(rebuilt.generations(rebuilt.know).expect(2).kept_ms), list[str]()
    kept = KeptGenerations(rebuilt.cluster, rebuilt.app, 3_600, notes.append, clock)
    kept.drop_expired(rebuilt.know, rebuilt.generations(rebuilt.know))
    assert [entry.number for entry in rebuilt.generations(rebuilt.know).entries] == [1, 2, 3]
    clock.advance(3_601)
    for _ in range(2):
        kept.drop_expired(rebuilt.know, rebuilt.generations(rebuilt.know))
    # Flow count still serves rows of generation 2.
    assert [entry.number for entry in rebuilt.generations(rebuilt.know).entries] == [2, 3]
    assert rebuilt.cluster.topic(f"{rebuilt.know.writes.name}.g1") is None
    assert [note.split(":")[0] for note in notes] == [
        f"flow {rebuilt.know.name}",
        f"generation 2 of flow {rebuilt.know.name} cannot be dropped",
    ]
    rebuilt.derive(rebuilt.count, rebuilt.begin(rebuilt.count, third.topic), rows)
    switch_now(rebuilt.cluster, rebuilt.count, 3)
    clock.advance(61)
    kept.drop_expired(rebuilt.know, rebuilt.generations(rebuilt.know))
    assert [entry.number for entry in rebuilt.generations(rebuilt.know).entries] == [3]


def _context(rental: Rental, flow: Flow, fingerprint: str) -> Any:
    return SimpleNamespace(
        flow=flow,
        cluster=rental.cluster,
        app=rental.app,
        compiled=SimpleNamespace(fingerprint=fingerprint),
    )


def test_a_generation_that_never_served_is_dropped_when_a_newer_one_begins(rental: Rental) -> None:
    rental.derive(rental.know, rental.begin(rental.know), {"b0": 1})
    superseded = rental.begin(rental.know)
    begin_generation(_context(rental, rental.know, "newest"), "requested")
    generations = rental.generations(rental.know)
    assert [(entry.number, generations.role(entry.number)) for entry in generations.entries] == [
        (1, "serving"),
        (3, "building"),
    ]
    until(lambda: rental.cluster.topic(superseded.topic) is None, "its topic is deleted")


def test_a_deployment_derives_a_switched_flow_only_if_the_process_that_did_has_died(
    rental: Rental, monkeypatch: pytest.MonkeyPatch
) -> None:
    rental.write(1)
    rental.derive(rental.know, rental.begin(rental.know), {"b0": 1})
    second = rental.begin(rental.know)
    rental.derive(rental.know, second, {"b0": 1})
    switch_now(rental.cluster, rental.know, 2)
    context, notes = _context(rental, rental.know, "new"), list[str]()
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    for pid, deployed in ((os.getppid(), None), (died.pid, 2)):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        writer = open_writer(rental.cluster, rental.know, second)
        progress = current(rental.cluster, second.progress)
        assert progress is not None
        owner = Ownership(rental.cluster, rental.know, 60_000)
        owner.progress_topic = second.progress
        owner.claim(writer, progress)
        writer.close()
        monkeypatch.undo()
        assert generation_to_deploy(context, notes.append) == deployed
    assert [f"process {os.getppid()} on host" in note for note in notes] == [True]


def test_an_app_derives_a_deployed_generation_only_when_it_serves_or_nobody_does(rental: Rental) -> None:
    rental.derive(rental.know, rental.begin(rental.know), {"b0": 1})
    entry = begin_generation(_context(rental, rental.know, "new"), "an input changed", is_deployed=True)
    generations = rental.generations(rental.know)

    def may_derive(generations: FlowGenerations, after_ms: int) -> bool:
        return may_derive_beside(
            rental.cluster, generations, generations.expect(2), entry.begun_ms + after_ms
        )

    # The deployment needs a moment to open it.
    assert not may_derive(generations, 60_000)
    assert may_derive(generations, 60_001)
    assert may_derive(msgspec.structs.replace(generations, serving=2), 0)
    requested = msgspec.structs.replace(entry, is_deployed=False)
    assert may_derive(generations.with_entry(requested), 0)


def test_a_comparison_continues_after_the_log_did_not_respond(
    rebuilt: Rental, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = new(rebuilt, rebuilt.know)
    with Comparison(rebuilt.cluster, rebuilt.know, entry) as comparison:

        def broken(*arguments: Any) -> Any:
            yield from ()
            raise LogError("no response", name="TIMED_OUT", retriable=True)

        with monkeypatch.context() as patch:
            patch.setattr(difference, "read", broken)
            with pytest.raises(LogError):
                comparison.report(rebuilt.generations(rebuilt.know))
        counts = comparison.report(rebuilt.generations(rebuilt.know)).counts
    assert (counts.before, counts.after) == (4, 1)
