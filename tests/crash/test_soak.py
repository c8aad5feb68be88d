"""The full counts: what a soak sums up, when it fails, what it writes, and what it need not do again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench import report, soak
from bench.faults import FAULTS, Fault, covered
from bench.faults.covered import code_digest, commit_of, is_stale
from bench.faults.kept_runs import KeptRuns
from bench.faults.outcome import Outcome
from bench.faults.seeds import VARIABLE, seeds

COVERS = ["bench/faults/x99_fake.py", "src/headrace/thing"]


class FakeFault:
    """A fault that holds but for one seed, whose runs are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, bad_seed: int = 0, shows: str = "") -> None:
        self.module = ModuleType("bench.faults.x99_fake")
        self.made: list[tuple[int, bool]] = []
        self.bad_seed = bad_seed
        self.shows = shows
        vars(self.module).update(run=self.run, UNPROTECTED={"fence": r"^\d+ lost$"})
        monkeypatch.setitem(sys.modules, self.module.__name__, self.module)
        monkeypatch.setitem(FAULTS, "X99", Fault("X99", "nothing real", ("x99_fake",), 5, ("thing",)))
        monkeypatch.setattr(soak, "run_apart", lambda module, seed, **how: module.run(seed, **how))

    def run(self, seed: int, *, protected: bool = True, without: str = "") -> Outcome:
        self.made.append((seed, protected))
        outcome = Outcome("X99", seed, hits=2, peak_rss_mb=30.0 + seed)
        if not protected and self.shows:
            outcome.problems.append(self.shows)
        elif not protected:
            outcome.lost = 1
        elif seed == self.bad_seed:
            raise RuntimeError("unforeseen")
        return outcome


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    for place in ("src/headrace/thing", "bench/faults"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "src/headrace/thing/part.py").write_text("one = 1\n")
    (tmp_path / "bench/faults/x99_fake.py").write_text("")
    monkeypatch.setattr(soak, "write_faults", lambda rows: report.write_faults(rows, tmp_path))
    monkeypatch.setattr(soak, "KeptRuns", lambda: KeptRuns(tmp_path / "soak.jsonl"))
    monkeypatch.setattr(soak, "code_digest", lambda covers: code_digest(covers, tmp_path))
    monkeypatch.setattr(soak, "commit_of", lambda covers: "c0ffee")
    return tmp_path / "faults.json"


def rows_in(results: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(results.read_text())
    return found


def test_a_module_may_say_that_fewer_runs_are_enough(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake = FakeFault(monkeypatch)
    monkeypatch.setattr(fake.module, "RUNS", 2, raising=False)
    assert soak.main(["--only", "X99"]) == 0
    (row,) = rows_in(results)
    assert (row["runs"], row["seeds"]) == (2, [1, 2])


def test_a_fault_that_held_in_every_run_gets_its_row_with_commit_and_date(
    monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    FakeFault(monkeypatch)
    assert soak.main(["--only", "X99"]) == 0
    (row,) = rows_in(results)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row.pop("date"))
    assert row == {
        "fault": "X99",
        "held": True,
        "runs": 5,
        "hits": 10,
        "lost": 0,
        "duplicated": 0,
        "peak_rss_mb": 35,
        "seeds": [1, 2, 3, 4, 5],
        "caught_unprotected": True,
        "failures": [],
        "commit": "c0ffee",
        "code": code_digest(COVERS, results.parent),
        "covers": COVERS,
    }


def test_a_few_runs_do_not_take_the_place_of_the_full_count(
    monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    FakeFault(monkeypatch)
    assert soak.main(["--only", "X99", "--runs", "4"]) == 0
    assert not results.exists()
    monkeypatch.setenv(VARIABLE, "3")
    assert soak.main(["--only", "X99"]) == 0
    assert not results.exists()


def test_one_failed_run_fails_the_soak_which_writes_it_and_makes_the_others(
    monkeypatch: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeFault(monkeypatch, bad_seed=2)
    assert soak.main(["--only", "X99"]) == 1
    said = capsys.readouterr().out
    assert "HEADRACE_SEED=2" in said
    assert "RuntimeError: unforeseen" in said
    assert "5 runs, 8 hits" in said
    (row,) = rows_in(results)
    assert (row["held"], row["commit"]) == (False, "c0ffee")
    (failure,) = row["failures"]
    assert failure["seed"] == 2
    assert "RuntimeError: unforeseen" in failure["problems"][0]


def test_a_failure_among_a_few_runs_is_written_too(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    FakeFault(monkeypatch, bad_seed=2)
    assert soak.main(["--only", "X99", "--runs", "2"]) == 1
    assert rows_in(results)[0]["failures"][0]["seed"] == 2


@pytest.mark.parametrize("shows", ["BrokerDied: it ended by itself", "2 records differ"])
def test_only_the_finding_that_a_protection_names_counts_as_caught(
    monkeypatch: pytest.MonkeyPatch, results: Path, shows: str
) -> None:
    FakeFault(monkeypatch, shows=shows)
    assert soak.main(["--only", "X99", "--runs", "1"]) == 1
    (row,) = rows_in(results)
    assert row["caught_unprotected"] is False
    assert row["failures"] == [{"seed": 0, "problems": ["not caught without fence"]}]


def test_a_soak_goes_on_where_it_was_left_as_long_as_the_code_is_the_same(
    monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    fake = FakeFault(monkeypatch)
    assert soak.main(["--only", "X99", "--runs", "3"]) == 0
    with (results.parent / "soak.jsonl").open("a") as kept:
        kept.write('{"fault": "X99", "cut": "sho')
    fake.made.clear()
    assert soak.main(["--only", "X99"]) == 0
    assert fake.made == [(4, True), (5, True)]
    assert rows_in(results)[0]["runs"] == 5
    fake.made.clear()
    (results.parent / "src/headrace/thing/part.py").write_text("one = 2\n")
    assert soak.main(["--only", "X99"]) == 0
    assert fake.made == [(1, False), *((seed, True) for seed in range(1, 6))]


def test_a_fresh_soak_makes_every_run(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake = FakeFault(monkeypatch)
    assert soak.main(["--only", "X99"]) == 0
    fake.made.clear()
    assert soak.main(["--only", "X99", "--fresh"]) == 0
    assert len(fake.made) == 6
    lines = (results.parent / "soak.jsonl").read_text().splitlines()
    assert len(lines) == 6


def test_a_failed_run_is_kept_as_well(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake = FakeFault(monkeypatch, bad_seed=2)
    assert soak.main(["--only", "X99"]) == 1
    fake.made.clear()
    assert soak.main(["--only", "X99"]) == 1
    assert fake.made == []
    assert rows_in(results)[0]["failures"][0]["seed"] == 2


def test_a_row_is_stale_once_code_that_it_covers_has_changed(results: Path) -> None:
    root = results.parent
    row = {"commit": "c0ffee", "covers": COVERS, "code": code_digest(COVERS, root)}
    assert not is_stale(row, root)
    (root / "src/headrace/other.py").write_text("more = 1\n")
    assert not is_stale(row, root)
    (root / "src/headrace/thing/new.py").write_text("")
    assert is_stale(row, root)
    (root / "src/headrace/thing/new.py").unlink()
    assert not is_stale(row, root)
    assert is_stale({**row, "commit": covered.UNKNOWN}, root)


def test_the_commit_is_unknown_while_covered_code_is_not_committed(tmp_path: Path) -> None:
    import subprocess

    def git(*words: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    assert commit_of(["a"], tmp_path) == covered.UNKNOWN
    git("init", "-q")
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    assert re.fullmatch(r"[0-9a-f]{40}", commit_of(["a"], tmp_path))
    (tmp_path / "b").write_text("2")
    assert re.fullmatch(r"[0-9a-f]{40}", commit_of(["a"], tmp_path))
    (tmp_path / "a").write_text("2")
    assert commit_of(["a"], tmp_path) == covered.UNKNOWN


def test_a_run_without_a_hit_has_not_held() -> None:
    assert not Outcome("X99", 1).held
    assert Outcome("X99", 1, hits=1).held
    assert not Outcome("X99", 1, hits=1, problems=["something"]).held


def test_the_environment_names_the_one_run_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert seeds(3, first=5) == [5, 6, 7]
    monkeypatch.setenv(VARIABLE, "17")
    assert seeds(200) == [17]


def test_every_fault_names_modules_that_can_be_run_and_code_that_exists() -> None:
    for fault in FAULTS.values():
        for module in fault.load():
            assert callable(module.run)
            assert module.UNPROTECTED
            for finding in module.UNPROTECTED.values():
                re.compile(finding)
        for place in fault.covers:
            assert (covered.ROOT / place).exists(), place
