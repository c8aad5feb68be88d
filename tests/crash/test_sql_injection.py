"""SQL in place of a value or a name: a small subset of the cases of ``faults.serve.sql_injection``."""

from __future__ import annotations

import pytest

from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.serve import sql_injection
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_sql_in_statements_filters_and_keys_accesses_only_data_that_the_token_grants(seed: int) -> None:
    expect_no_problems(run_in_process(sql_injection, seed, cases=50))


@pytest.mark.soak
@pytest.mark.parametrize("without", ["sql-authorizer", "view-names", "column-names", "sql-rows"])
def test_the_oracle_reports_a_violation_if_one_sql_check_is_disabled(
    without: str,
) -> None:
    expect_caught(sql_injection, without, tries=1, cases=12)


@pytest.mark.soak
def test_the_oracle_detects_a_server_that_does_not_stop_long_statements() -> None:
    expect_caught(sql_injection, "sql-steps", tries=1, cases=12, patience_s=3.0)
