"""Events in disorder, late, twice, with absurd times, and poison among them, checkpoints that are harmed, plans that
reorder, input that explodes and functions that change: a quick share of ``x9_order``, ``x10_absurd``, ``x26_poison``,
``x7_checkpoint``, ``plan_order``, ``exploding_input`` and ``changed_function``, which share one Spark.
"""

from __future__ import annotations

import random

from bench.faults import (
    changed_function,
    exploding_input,
    plan_order,
    x7_checkpoint,
    x9_order,
    x10_absurd,
    x26_poison,
)
from tests.crash.verdicts import expect_caught, expect_held


def test_every_event_is_counted_or_late_or_dead_and_what_is_derived_is_what_the_counted_come_to() -> None:
    expect_held(x9_order.run(2))


def test_lateness_that_is_not_told_is_caught() -> None:
    expect_caught(x9_order, "late-record", tries=2, apart=False, first=2, rounds=1)


def test_absurd_times_are_dead_letters_and_move_no_watermark() -> None:
    expect_held(x10_absurd.run(2, rounds=1))


def test_a_poison_value_is_derived_unaltered_or_is_a_dead_letter_with_its_bytes() -> None:
    expect_held(x26_poison.run(1, values=300))


def test_values_that_are_read_without_care_are_caught() -> None:
    expect_caught(x26_poison, "care", tries=3, apart=False, values=60)


def test_a_harmed_checkpoint_stops_its_flow_and_a_new_generation_is_what_was_sent_comes_to() -> None:
    expect_held(x7_checkpoint.run(2))


def test_rows_of_random_flows_are_in_the_order_of_the_log_however_spark_plans_them() -> None:
    expect_held(plan_order.run(10, cases=1, proven=False, planted=False))
    drawn = plan_order.run(random.randrange(2**32), cases=1, proven=False, planted=False)
    assert not drawn.findings, drawn.says()


def test_rows_that_are_written_as_spark_hands_them_over_are_caught() -> None:
    expect_caught(plan_order, "order", apart=False, cases=1)


def test_a_key_with_more_rows_than_a_batch_may_hold_loses_none_and_other_flows_go_on() -> None:
    expect_held(exploding_input.run_small(1, ("key",)))


def test_a_changed_function_is_noticed_before_a_row_is_written() -> None:
    expect_held(changed_function.run(2, cases=2, with_input=False))
