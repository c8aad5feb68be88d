"""Dead letters are replayed while any part is killed: a few runs of ``faults.views.replay_kill``."""

from __future__ import annotations

import pytest

from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.views import replay_kill
from tests.crash.verdicts import expect_caught, expect_no_problems


@pytest.mark.parametrize("seed", seeds(1))
def test_each_dead_letter_is_replayed_once_even_if_any_part_is_killed(seed: int) -> None:
    expect_no_problems(run_in_process(replay_kill, seed))


@pytest.mark.soak
@pytest.mark.parametrize("without", replay_kill.UNPROTECTED)
def test_the_oracle_detects_replays_without_fencing_or_without_deduplication(without: str) -> None:
    expect_caught(replay_kill, without, kills=("server",), letters=1_000)
