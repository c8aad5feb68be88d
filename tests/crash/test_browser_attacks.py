"""Script in what is shown, and pages of other sites: a quick share of ``bench.faults.browser_attacks``, in Chromium."""

from __future__ import annotations

import pytest

from bench.faults import browser_attacks
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_no_page_runs_what_it_shows_and_no_other_site_or_name_is_answered(seed: int) -> None:
    expect_held(run_apart(browser_attacks, seed, visits=16))


@pytest.mark.parametrize("without", sorted(browser_attacks.UNPROTECTED))
def test_a_server_without_one_protection_of_its_pages_is_caught_in_the_browser(without: str) -> None:
    expect_caught(browser_attacks, without, tries=1, visits=1)
