"""Jars come by their pinned coordinates and hash, or not at all. The real Ivy runs, on a folder, not on the network."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tools.console import SetupError
from tools.jars import (
    Jar,
    fetch,
    jar,
    java_client_classpath,
    kafka_server_classpath,
    pinned,
    read_lock,
    spark_jars,
)
from tools.java import compile_java

CONTENT = b"as good as a jar"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the repository, and an empty cache."""
    folder = tmp_path / "repository"
    folder.mkdir()
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="folder"/><resolvers><filesystem name="folder">'
        f'<artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return folder


def wanted(sha256: str = SHA256) -> Jar:
    return Jar("group", "org.example", "thing", "1.0", sha256, "shown to work")


def test_a_jar_is_fetched_once_and_said_why(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "thing-1.0.jar").write_bytes(CONTENT)
    fetch([wanted()])
    assert wanted().path.read_bytes() == CONTENT
    assert "jar 1/1: thing 1.0: shown to work" in capsys.readouterr().err
    # Gone from where it came from, so that a second fetch would fail if it asked.
    (repository / "thing-1.0.jar").unlink()
    fetch([wanted()])
    assert capsys.readouterr().err == ""


def test_a_damaged_jar_in_the_cache_is_fetched_again(repository: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(CONTENT)
    fetch([wanted()])
    wanted().path.write_bytes(CONTENT[:-1])
    fetch([wanted()])
    assert wanted().path.read_bytes() == CONTENT


def test_a_jar_of_another_hash_never_enters_the_cache(repository: Path) -> None:
    (repository / "thing-1.0.jar").write_bytes(b"something else")
    with pytest.raises(SetupError, match="not the file that was pinned") as caught:
        fetch([wanted()])
    assert SHA256 in caught.value.detail
    assert os.listdir(wanted().path.parent) == []


def test_a_jar_that_cannot_be_had_says_which_and_what_to_do(repository: Path) -> None:
    with pytest.raises(SetupError, match=r"org\.example:thing:1\.0 could not be fetched") as caught:
        fetch([wanted()])
    assert str(wanted().path) in caught.value.hint
    assert os.listdir(wanted().path.parent) == []


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
    with pytest.raises(SetupError, match="line 2"):
        read_lock(f"[group]\n{line}\n")


def test_a_name_with_two_revisions_must_be_told_apart() -> None:
    with pytest.raises(SetupError, match="names 2 of the pinned jars"):
        jar("kafka-clients")
    assert jar("kafka-clients:4.3.0").name == "kafka-clients-4.3.0.jar"


def test_what_the_tests_ask_for_is_there() -> None:
    assert all(one.is_cached() for one in pinned())
    assert set(java_client_classpath()) < set(kafka_server_classpath())
    assert len(spark_jars()) == 4


def test_java_is_compiled_without_a_jdk(tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text("import org.apache.kafka.common.Uuid; class Hello { Uuid id = Uuid.randomUuid(); }")
    compile_java([source], java_client_classpath(), tmp_path)
    assert (tmp_path / "Hello.class").is_file()
    source.write_text("class Hello { Uuid id; }")
    with pytest.raises(SetupError, match=r"Hello\.java does not compile") as caught:
        compile_java([source], java_client_classpath(), tmp_path)
    assert "Uuid" in caught.value.detail
