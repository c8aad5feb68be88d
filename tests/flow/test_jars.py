"""Jars are downloaded by pinned coordinates and hash. The real Ivy runs, on a directory instead of the network."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from headrace.flow.spark.errors import JarDiffers, MissingJars
from headrace.flow.spark.jars import Jar, fetch, ivy, jars_dir, pinned, provide, read_lock
from tools.java import java

CONTENT = b"as good as a jar"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
JAR = Jar("group", "org.example", "thing", "1.0", SHA256, "shown to work")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that replaces the repository."""
    folder = tmp_path / "repository"
    folder.mkdir()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="folder"/><resolvers><filesystem name="folder">'
        f'<artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(settings))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "jars"


def fetch_jar(cache: Path) -> list[str]:
    lines: list[str] = []
    fetch([JAR], cache, java=java(), ivy=ivy(), say=lines.append)
    return lines


def test_a_jar_is_downloaded_once_with_its_reason(repository: Path, cache: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(CONTENT)
    assert fetch_jar(cache) == [f"downloading 1 jar into {cache} (once)", "jar 1/1: thing 1.0: shown to work"]
    assert JAR.path_in(cache).read_bytes() == CONTENT
    # Remove the source, so that a second fetch would fail if it used the repository again.
    (repository / "thing-1.0.jar").unlink()
    assert fetch_jar(cache) == []


def test_a_damaged_jar_in_the_cache_is_downloaded_again(repository: Path, cache: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(CONTENT)
    fetch_jar(cache)
    JAR.path_in(cache).write_bytes(CONTENT[:-1])
    fetch_jar(cache)
    assert JAR.path_in(cache).read_bytes() == CONTENT


def test_a_jar_of_another_hash_never_enters_the_cache(repository: Path, cache: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(b"something else")
    with pytest.raises(JarDiffers, match="not the pinned file") as caught:
        fetch_jar(cache)
    assert SHA256 in caught.value.detail
    assert os.listdir(cache) == []


def test_a_jar_that_cannot_be_downloaded_is_named_with_a_hint(repository: Path, cache: Path) -> None:
    with pytest.raises(MissingJars, match=r"org\.example:thing:1\.0 could not be downloaded") as caught:
        fetch_jar(cache)
    assert str(JAR.path_in(cache)) in caught.value.hint
    assert "HEADRACE_IVY_SETTINGS" in caught.value.hint
    assert os.listdir(cache) == []


def test_the_error_for_a_read_only_cache_names_the_setting(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MissingJars, match=r"cannot create .* for jars") as caught:
        fetch_jar(tmp_path / "file" / "jars")
    assert "HEADRACE_CACHE" in caught.value.hint


@pytest.mark.parametrize(
    "line",
    [
        "org.example:thing 1.0",
        f"org.example:thing:1.0 {SHA256}",
        f"org.example:thing:1.0:more {SHA256} purpose",
        "x" * 64,
    ],
)
def test_an_invalid_line_of_the_lock_file_is_refused(line: str) -> None:
    with pytest.raises(MissingJars, match="line 2"):
        read_lock(f"[group]\n{line}\n")


def test_the_connector_exists_after_set_up_and_nothing_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    paths = provide(java(), say=lines.append)
    assert (lines, [path.name for path in paths]) == ([], [jar.file_name for jar in pinned()])
    assert len(paths) == 4


def test_jars_are_in_the_users_cache_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "here"))
    assert jars_dir() == tmp_path / "here" / "jars"
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars_dir() == tmp_path / "headrace" / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars_dir() == tmp_path / ".cache" / "headrace" / "jars"
