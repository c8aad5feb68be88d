"""The tests' own jars, beside those that the product fetches; how they are fetched: tests/flow/test_jars.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.console import SetupError
from tools.jars import jar, java_client_classpath, kafka_server_classpath, pinned, spark_jars
from tools.java import compile_java
from tools.places import cache_dir


def test_what_the_tests_ask_for_is_there() -> None:
    assert all(one.is_in(cache_dir() / "jars") for one in pinned())
    assert set(java_client_classpath()) < set(kafka_server_classpath())
    assert len(spark_jars()) == 4


def test_a_name_with_two_revisions_must_be_told_apart() -> None:
    with pytest.raises(SetupError, match="names 2 of the pinned jars"):
        jar("kafka-clients")
    assert jar("kafka-clients:4.3.0").name == "kafka-clients-4.3.0.jar"


def test_java_is_compiled_without_a_jdk(tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text("import org.apache.kafka.common.Uuid; class Hello { Uuid id = Uuid.randomUuid(); }")
    compile_java([source], java_client_classpath(), tmp_path)
    assert (tmp_path / "Hello.class").is_file()
    source.write_text("class Hello { Uuid id; }")
    with pytest.raises(SetupError, match=r"Hello\.java does not compile") as caught:
        compile_java([source], java_client_classpath(), tmp_path)
    assert "Uuid" in caught.value.detail
