"""Jars come by their pinned coordinates and hash, or not at all. The real Ivy runs, on a folder, not on the network."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from headrace.flow.jars import Jar, fetch, ivy, jars_dir, pinned, provide, read_lock
from headrace.flow.start_errors import JarDiffers, JarsMissing
from tools.java import java

CONTENT = b"as good as a jar"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
JAR = Jar("group", "org.example", "thing", "1.0", SHA256, "shown to work")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the repository."""
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
def kept(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "jars"


def get(kept: Path) -> list[str]:
    said: list[str] = []
    fetch([JAR], kept, java=java(), ivy=ivy(), say=said.append)
    return said


def test_a_jar_is_fetched_once_and_said_why(repository: Path, kept: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(CONTENT)
    assert get(kept) == [f"fetching 1 jar, once, into {kept}", "jar 1/1: thing 1.0: shown to work"]
    assert JAR.path_in(kept).read_bytes() == CONTENT
    # Gone from where it came from, so that a second fetch would fail if it asked.
    (repository / "thing-1.0.jar").unlink()
    assert get(kept) == []


def test_a_damaged_jar_in_the_cache_is_fetched_again(repository: Path, kept: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(CONTENT)
    get(kept)
    JAR.path_in(kept).write_bytes(CONTENT[:-1])
    get(kept)
    assert JAR.path_in(kept).read_bytes() == CONTENT


def test_a_jar_of_another_hash_never_enters_the_cache(repository: Path, kept: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(b"something else")
    with pytest.raises(JarDiffers, match="not the file that was pinned") as caught:
        get(kept)
    assert SHA256 in caught.value.detail
    assert os.listdir(kept) == []


def test_a_jar_that_cannot_be_had_says_which_and_what_to_do(repository: Path, kept: Path) -> None:
    with pytest.raises(JarsMissing, match=r"org\.example:thing:1\.0 could not be fetched") as caught:
        get(kept)
    assert str(JAR.path_in(kept)) in caught.value.hint
    assert "HEADRACE_IVY_SETTINGS" in caught.value.hint
    assert os.listdir(kept) == []


def test_a_cache_that_cannot_be_written_says_how_to_name_another(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JarsMissing, match="cannot be kept in") as caught:
        get(tmp_path / "file" / "jars")
    assert "HEADRACE_CACHE" in caught.value.hint


@pytest.mark.parametrize(
    "line",
    [
        "org.example:thing 1.0",
        f"org.example:thing:1.0 {SHA256}",
        f"org.example:thing:1.0:more {SHA256} why",
        "x" * 64,
    ],
)
def test_a_line_of_the_lock_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(JarsMissing, match="line 2"):
        read_lock(f"[group]\n{line}\n")


def test_the_connector_is_there_after_set_up_and_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    paths = provide(java(), say=said.append)
    assert (said, [path.name for path in paths]) == ([], [one.file_name for one in pinned()])
    assert len(paths) == 4


def test_jars_are_kept_in_the_user_s_cache_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "here"))
    assert jars_dir() == tmp_path / "here" / "jars"
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars_dir() == tmp_path / "headrace" / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars_dir() == tmp_path / ".cache" / "headrace" / "jars"
