"""The soak: its totals over runs, when it fails, which rows it writes, and which runs it skips."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench import soak
from faults import FAULTS, Fault, covered_code
from faults.covered_code import code_digest, commit_of, is_stale
from faults.outcome import Outcome
from faults.seeds import VARIABLE, seeds

COVERS = ["faults/x99_fake.py", "src/headrace/thing"]


class FakeFault:
    """A fault module whose runs pass except for ``bad_seed``. It records its runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, bad_seed: int = 0, finding: str = "") -> None:
        self.module = ModuleType("faults.x99_fake")
        self.seen_runs: list[tuple[int, bool]] = []
        self.bad_seed = bad_seed
        self.finding = finding
        vars(self.module).update(run=self.run, UNPROTECTED={"fence": r"^\d+ lost$"})
        monkeypatch.setitem(sys.modules, self.module.__name__, self.module)
        monkeypatch.setitem(FAULTS, "X99", Fault("X99", "nothing real", ("x99_fake",), 5, ("thing",)))
        monkeypatch.setattr(
            soak, "run_in_process", lambda module, seed, **options: module.run(seed, **options)
        )

    def run(self, seed: int, *, protected: bool = True, without: str = "") -> Outcome:
        self.seen_runs.append((seed, protected))
        outcome = Outcome("X99", seed, hits=2, peak_rss_mb=30.0 + seed)
        if not protected and self.finding:
            outcome.problems.append(self.finding)
        elif not protected:
            outcome.lost = 1
        elif seed == self.bad_seed:
            raise RuntimeError("unforeseen")
        return outcome


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    for folder in ("src/headrace/thing", "faults"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/headrace/thing/part.py").write_text("one = 1\n")
    (tmp_path / "faults/x99_fake.py").write_text("")
    monkeypatch.setattr(soak, "RESULTS", tmp_path)
    monkeypatch.setattr(soak, "SAVED_RUNS", tmp_path / "soak.jsonl")
    monkeypatch.setattr(soak, "code_digest", lambda covers: code_digest(covers, tmp_path))
    monkeypatch.setattr(soak, "commit_of", lambda covers: "c0ffee")
    return tmp_path / "faults.json"


def rows_in(results: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(results.read_text())
    return rows


def test_a_module_can_override_the_number_of_runs(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake = FakeFault(monkeypatch)
    monkeypatch.setattr(fake.module, "RUNS", 2, raising=False)
    assert soak.main(["--only", "X99"]) == 0
    (row,) = rows_in(results)
    assert (row["runs"], row["seeds"]) == (2, [1, 2])


def test_a_fault_that_passed_every_run_gets_a_row_with_commit_and_date(
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


def test_a_partial_soak_writes_no_row(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    FakeFault(monkeypatch)
    assert soak.main(["--only", "X99", "--runs", "4"]) == 0
    assert not results.exists()
    monkeypatch.setenv(VARIABLE, "3")
    assert soak.main(["--only", "X99"]) == 0
    assert not results.exists()


def test_the_soak_continues_after_a_failed_run_records_it_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeFault(monkeypatch, bad_seed=2)
    assert soak.main(["--only", "X99"]) == 1
    output = capsys.readouterr().out
    assert "HEADRACE_SEED=2" in output
    assert "RuntimeError: unforeseen" in output
    assert "5 runs, 8 hits" in output
    (row,) = rows_in(results)
    assert (row["held"], row["commit"]) == (False, "c0ffee")
    (failure,) = row["failures"]
    assert failure["seed"] == 2
    assert "RuntimeError: unforeseen" in failure["problems"][0]


def test_a_failure_in_a_partial_soak_is_recorded(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    FakeFault(monkeypatch, bad_seed=2)
    assert soak.main(["--only", "X99", "--runs", "2"]) == 1
    assert rows_in(results)[0]["failures"][0]["seed"] == 2


@pytest.mark.parametrize("finding", ["BrokerDied: it ended by itself", "2 records differ"])
def test_only_the_expected_finding_counts_as_caught(
    monkeypatch: pytest.MonkeyPatch, results: Path, finding: str
) -> None:
    FakeFault(monkeypatch, finding=finding)
    assert soak.main(["--only", "X99", "--runs", "1"]) == 1
    (row,) = rows_in(results)
    assert row["caught_unprotected"] is False
    assert row["failures"] == [{"seed": 0, "problems": ["not caught without fence"]}]


def test_a_soak_skips_saved_runs_until_the_code_changes(
    monkeypatch: pytest.MonkeyPatch, results: Path
) -> None:
    fake = FakeFault(monkeypatch)
    assert soak.main(["--only", "X99", "--runs", "3"]) == 0
    with (results.parent / "soak.jsonl").open("a") as saved_runs:
        saved_runs.write('{"fault": "X99", "cut": "sho')
    fake.seen_runs.clear()
    assert soak.main(["--only", "X99"]) == 0
    assert fake.seen_runs == [(4, True), (5, True)]
    assert rows_in(results)[0]["runs"] == 5
    fake.seen_runs.clear()
    (results.parent / "src/headrace/thing/part.py").write_text("one = 2\n")
    assert soak.main(["--only", "X99"]) == 0
    assert fake.seen_runs == [(1, False), *((seed, True) for seed in range(1, 6))]


def test_a_fresh_soak_repeats_every_run(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake = FakeFault(monkeypatch)
    assert soak.main(["--only", "X99"]) == 0
    fake.seen_runs.clear()
    assert soak.main(["--only", "X99", "--fresh"]) == 0
    assert len(fake.seen_runs) == 6
    lines = (results.parent / "soak.jsonl").read_text().splitlines()
    assert len(lines) == 6


def test_a_soak_does_not_repeat_a_failed_run(monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
    fake = FakeFault(monkeypatch, bad_seed=2)
    assert soak.main(["--only", "X99"]) == 1
    fake.seen_runs.clear()
    assert soak.main(["--only", "X99"]) == 1
    assert fake.seen_runs == []
    assert rows_in(results)[0]["failures"][0]["seed"] == 2


def test_a_row_is_stale_after_its_covered_code_has_changed(results: Path) -> None:
    root = results.parent
    row = {"commit": "c0ffee", "covers": COVERS, "code": code_digest(COVERS, root)}
    assert not is_stale(row, root)
    (root / "src/headrace/other.py").write_text("more = 1\n")
    assert not is_stale(row, root)
    (root / "src/headrace/thing/new.py").write_text("")
    assert is_stale(row, root)
    (root / "src/headrace/thing/new.py").unlink()
    assert not is_stale(row, root)
    assert is_stale({**row, "commit": covered_code.UNKNOWN}, root)


def test_changed_comments_docstrings_and_blank_lines_keep_the_code_digest(tmp_path: Path) -> None:
    code = '"""Read."""\n\ndef read(name):\n    """Return it."""\n    # Not empty.\n    return name + " # 1"  # now\n'
    reworded = '\ndef read(name):\n    """Returns\n    the name.\n    """\n\n    return name + " # 1"\n'
    digests = []
    for number, source in enumerate(
        (code, reworded, code.replace("# 1", "# 2"), code.replace("return name", "return  name"))
    ):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "read.py").write_text(source)
        digests.append(code_digest(["read.py"], root))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_commit_is_unknown_while_covered_code_is_not_committed(tmp_path: Path) -> None:
    import subprocess

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert commit_of(["a"], tmp_path) == covered_code.UNKNOWN
    git("init", "-q")
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    assert re.fullmatch(r"[0-9a-f]{40}", commit_of(["a"], tmp_path))
    (tmp_path / "b").write_text("2")
    assert re.fullmatch(r"[0-9a-f]{40}", commit_of(["a"], tmp_path))
    (tmp_path / "a").write_text("2")
    assert commit_of(["a"], tmp_path) == covered_code.UNKNOWN


def test_a_run_without_a_hit_fails() -> None:
    assert not Outcome("X99", 1).held
    assert Outcome("X99", 1, hits=1).held
    assert not Outcome("X99", 1, hits=1, problems=["something"]).held


def test_headrace_seed_selects_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert seeds(3, first=5) == [5, 6, 7]
    monkeypatch.setenv(VARIABLE, "17")
    assert seeds(200) == [17]


def test_every_fault_lists_runnable_modules_and_existing_code() -> None:
    for fault in FAULTS.values():
        for module in fault.load():
            assert callable(module.run)
            assert module.UNPROTECTED
            for pattern in module.UNPROTECTED.values():
                re.compile(pattern)
        for covered in fault.covered_paths:
            assert (covered_code.ROOT / covered).exists(), covered


def test_few_flows_run_at_once_because_each_has_a_spark_of_its_own() -> None:
    fault = Fault("X0", "outage", ("log.outage", "flows.outage"), 10, (), at_once=10)
    assert [fault.parallel_runs(f"faults.{module}") for module in fault.modules] == [10, 3]
    assert Fault("X0", "outage", ("flows.outage",), 10, ()).parallel_runs("faults.flows.outage") == 1
