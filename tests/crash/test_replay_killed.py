"""Dead letters are written back while everything is killed: a quick share of ``bench.faults.replay_killed``."""

from __future__ import annotations

import pytest

from bench.faults import replay_killed
from bench.faults.apart import run_apart
from bench.faults.seeds import seeds
from tests.crash.verdicts import expect_caught, expect_held


@pytest.mark.parametrize("seed", seeds(1))
def test_every_letter_is_written_back_once_whatever_is_killed_meanwhile(seed: int) -> None:
    expect_held(run_apart(replay_killed, seed))


@pytest.mark.parametrize("without", replay_killed.UNPROTECTED)
def test_servers_that_do_not_know_of_each_other_or_of_what_was_written_are_caught(without: str) -> None:
    expect_caught(replay_killed, without, kills=("server",), letters=1_000)
