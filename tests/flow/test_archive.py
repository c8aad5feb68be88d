"""Class archives (CDS) for Spark: each combination of Java and jars has its own, and only the newest few are kept."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.flow.spark.class_archive import archive_of, archive_options, archives_dir, prune
from headrace.flow.spark.jvm import Launch


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    for name in ("java", "connector.jar", "spark/jars/a.jar", "spark/jars/b.jar"):
        (tmp_path / name).write_text(name)
    return Launch(tmp_path / "java", tmp_path / "spark", [tmp_path / "connector.jar"], "1g", ())


def test_an_archive_belongs_to_one_java_and_one_list_of_jars(launch: Launch, tmp_path: Path) -> None:
    path = archive_of(launch)
    assert archive_of(replace(launch, memory="4g", options=("-Dx=y",))) == path
    assert archive_of(replace(launch, jars=())) != path
    (tmp_path / "spark" / "jars" / "a.jar").write_text("another")
    changed = archive_of(launch)
    assert changed != path
    (tmp_path / "java").write_text("a newer one")
    assert archive_of(launch) not in (path, changed)


def test_an_existing_archive_is_used(launch: Launch) -> None:
    assert archive_options(launch) == []
    archives_dir().mkdir(parents=True)
    archive_of(launch).touch()
    assert f"-XX:SharedArchiveFile={archive_of(launch)}" in archive_options(launch)


def test_the_least_recently_used_archives_are_deleted(launch: Launch) -> None:
    archives_dir().mkdir(parents=True)
    for age in range(5):
        path = archives_dir() / f"{age}.jsa"
        path.touch()
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    prune()
    assert sorted(path.name for path in archives_dir().iterdir()) == ["0.jsa", "1.jsa", "2.jsa"]
