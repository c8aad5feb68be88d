"""SQL where a value or a name belongs: a quick share of ``bench.faults.sql_injection``."""

from __future__ import annotations

import pytest

from bench.faults import sql_injection
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_no_statement_filter_or_key_reads_or_changes_what_the_token_does_not_grant(seed: int) -> None:
    expect_held(run_apart(sql_injection, seed, cases=50))


@pytest.mark.parametrize("without", ["sql-authorizer", "view-names", "column-names", "sql-rows"])
def test_a_server_without_one_check_of_names_calls_or_rows_is_caught_by_what_it_shows(without: str) -> None:
    expect_caught(sql_injection, without, tries=1, cases=12)


def test_a_server_that_lets_a_statement_run_on_is_caught_by_its_client() -> None:
    expect_caught(sql_injection, "sql-steps", tries=1, cases=12, patience_s=3.0)
