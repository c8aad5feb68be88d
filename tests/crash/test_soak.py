"""The full counts: what a soak sums up, when it fails, and what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench import report, soak
from bench.faults import FAULTS, Fault
from bench.faults.outcome import Outcome
from bench.faults.seeds import VARIABLE, seeds


def fake_fault(monkeypatch: pytest.MonkeyPatch, *, bad_seed: int = 0, caught: bool = True) -> Fault:
    """A fault that holds but for one seed."""
    module = ModuleType("bench.faults.x99_fake")

    def run(seed: int, *, protected: bool = True, without: str = "all") -> Outcome:
        outcome = Outcome("X99", seed, hits=2, peak_rss_mb=30.0 + seed)
        if not protected:
            outcome.lost = int(caught)
        elif seed == bad_seed:
            raise RuntimeError("unforeseen")
        return outcome

    vars(module).update(run=run, UNPROTECTED=("all",))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    fault = Fault("X99", "nothing real", ("x99_fake",), 5)
    monkeypatch.setitem(FAULTS, "X99", fault)
    monkeypatch.setattr(soak, "run_apart", lambda module, seed, **how: module.run(seed, **how))
    return fault


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(soak, "write_faults", lambda rows: report.write_faults(rows, tmp_path))
    return tmp_path / "faults.json"


def test_a_module_may_say_that_fewer_runs_are_enough(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake_fault(monkeypatch)
    monkeypatch.setattr(sys.modules["bench.faults.x99_fake"], "RUNS", 2, raising=False)
    assert soak.main(["--only", "X99"]) == 0
    (row,) = json.loads(results.read_text())
    assert (row["runs"], row["seeds"]) == (2, [1, 2])


def test_a_fault_that_held_in_every_run_gets_its_row(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake_fault(monkeypatch)
    assert soak.main(["--only", "X99"]) == 0
    (row,) = json.loads(results.read_text())
    assert row == {
        "fault": "X99",
        "runs": 5,
        "hits": 10,
        "lost": 0,
        "duplicated": 0,
        "peak_rss_mb": 35,
        "seeds": [1, 2, 3, 4, 5],
        "caught_unprotected": True,
    }


def test_a_few_runs_do_not_take_the_place_of_the_full_count(
    monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    fake_fault(monkeypatch)
    assert soak.main(["--only", "X99", "--runs", "4"]) == 0
    assert not results.exists()
    monkeypatch.setenv(VARIABLE, "3")
    assert soak.main(["--only", "X99"]) == 0
    assert not results.exists()


def test_one_failed_run_fails_the_soak_and_the_others_are_still_made(
    monkeypatch: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_fault(monkeypatch, bad_seed=2)
    assert soak.main(["--only", "X99"]) == 1
    said = capsys.readouterr().out
    assert "HEADRACE_SEED=2" in said
    assert "RuntimeError: unforeseen" in said
    assert "5 runs, 8 hits" in said
    assert not results.exists()


def test_an_oracle_that_does_not_object_without_the_protection_fails_the_soak(
    monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    fake_fault(monkeypatch, caught=False)
    assert soak.main(["--only", "X99", "--runs", "1"]) == 1
    assert not results.exists()


def test_a_run_without_a_hit_has_not_held() -> None:
    assert not Outcome("X99", 1).held
    assert Outcome("X99", 1, hits=1).held
    assert not Outcome("X99", 1, hits=1, problems=["something"]).held


def test_the_environment_names_the_one_run_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert seeds(3, first=5) == [5, 6, 7]
    monkeypatch.setenv(VARIABLE, "17")
    assert seeds(200) == [17]


def test_every_fault_names_modules_that_can_be_run() -> None:
    for fault in FAULTS.values():
        for module in fault.load():
            assert callable(module.run)
            assert module.UNPROTECTED
