"""Faults of flows that share one Spark session: short runs of the modules in ``faults/flows``."""

from __future__ import annotations

import random

import pytest

from faults.flows import (
    absurd_times,
    changed_function,
    clock_jumps,
    damaged_checkpoint,
    deployment_kill,
    disorder,
    exploding_input,
    generation_switch,
    plan_order,
    poison_values,
)
from tests.crash.verdicts import expect_caught, expect_no_problems

JUMPS_SEED = 5
pytestmark = pytest.mark.usefixtures("fault_world")


def test_each_event_is_counted_late_or_dead_and_results_include_the_counted_ones() -> None:
    expect_no_problems(disorder.run(2))


@pytest.mark.soak
def test_the_oracle_detects_unreported_late_events() -> None:
    expect_caught(disorder, "late-record", tries=2, isolated=False, first=2, rounds=1)


def test_records_with_absurd_times_become_dead_letters_and_move_no_watermark() -> None:
    expect_no_problems(absurd_times.run(2, rounds=1))


def test_a_poison_value_is_derived_unaltered_or_becomes_a_dead_letter_with_its_bytes() -> None:
    expect_no_problems(poison_values.run(1, values=300))


@pytest.mark.soak
def test_the_oracle_detects_values_that_are_not_decoded_strictly() -> None:
    expect_caught(poison_values, "strict-decoding", tries=3, isolated=False, values=60)


def test_a_damaged_checkpoint_stops_its_flow_and_a_new_generation_is_correct() -> None:
    expect_no_problems(damaged_checkpoint.run(2))


def test_random_flows_write_rows_in_log_order_under_every_spark_plan() -> None:
    expect_no_problems(plan_order.run(10, cases=1, verified=False, planted=False))
    outcome = plan_order.run(random.randrange(2**32), cases=1, verified=False, planted=False)
    assert not outcome.findings, outcome.report()


@pytest.mark.soak
def test_the_oracle_detects_rows_in_the_order_of_spark_tasks() -> None:
    expect_caught(plan_order, "row-order", isolated=False, cases=1)


def test_a_key_with_too_many_rows_for_memory_loses_none_and_other_flows_continue() -> None:
    expect_no_problems(exploding_input.run_small(1, ("one-key",)))


def test_a_changed_function_is_detected_before_a_row_is_written() -> None:
    expect_no_problems(changed_function.run(2, cases=2, with_input=False))


def test_readers_keep_their_rows_when_the_process_that_switches_a_flow_dies() -> None:
    expect_no_problems(generation_switch.run(3))
    outcome = generation_switch.run(random.randrange(2**32))
    assert not outcome.findings, outcome.report()


@pytest.mark.soak
@pytest.mark.parametrize("protection", generation_switch.UNPROTECTED)
def test_the_oracle_detects_a_switch_without_a_fence_or_a_difference(protection: str) -> None:
    expect_caught(generation_switch, protection, tries=3, isolated=False)


@pytest.mark.soak
def test_readers_keep_their_rows_when_a_deployment_of_a_changed_schema_is_killed() -> None:
    expect_no_problems(deployment_kill.run(1))


def test_a_clock_jump_inside_a_batch_does_not_change_the_bytes_of_windows() -> None:
    expect_no_problems(clock_jumps.run(JUMPS_SEED, jumps=["-10 y"]))


@pytest.mark.soak
@pytest.mark.parametrize("protection", clock_jumps.UNPROTECTED)
def test_the_oracle_detects_a_flow_or_a_log_that_trusts_the_wall_clock(protection: str) -> None:
    expect_caught(clock_jumps, protection, tries=1, isolated=False, first=JUMPS_SEED)
