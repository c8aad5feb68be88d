"""The jars that only the tests use. tests/flow/test_jars.py tests how jars are fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.console import SetupError
from tools.jars import jar, java_client_classpath, kafka_server_classpath, pinned, spark_jars
from tools.java import compile_java
from tools.paths import cache_dir


def test_every_pinned_jar_is_in_the_cache() -> None:
    assert all(pinned_jar.is_in(cache_dir() / "jars") for pinned_jar in pinned())
    assert set(java_client_classpath()) < set(kafka_server_classpath())
    assert len(spark_jars()) == 4


def test_a_jar_with_two_revisions_must_be_named_with_its_revision() -> None:
    with pytest.raises(SetupError, match="matches 2 pinned jars"):
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
