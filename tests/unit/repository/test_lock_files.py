"""The lock files: hashes for everything, one version throughout, and every dependency of pyproject.toml."""

from __future__ import annotations

import re
import tomllib

import pytest

from tools.jars import pinned

from .tracked import ROOT

LOCKS = tuple(f"requirements{part}.lock" for part in ("", "-spark", "-serve", "-test", "-java"))


def versions(name: str) -> dict[tuple[str, str], str]:
    """Return the versions by package and environment marker."""
    text = (ROOT / name).read_text(encoding="utf-8")
    entries = re.findall(r"^([a-z0-9._-]+)==(\S+)(?: ; (.+?))? \\$", text, re.MULTILINE)
    return {(package, marker): version for package, version, marker in entries}


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_hashes_and_no_index_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) == len(versions(name)) > 0
    for entry in entries:
        requirement, *hashes = [line.rstrip(" \\") for line in entry.splitlines()]
        assert hashes, requirement
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in hashes), requirement
    assert "://" not in text


def test_tests_and_users_get_the_same_versions() -> None:
    parts = ("", "-spark", "-serve", "-test")
    command, flows, server, tests = (versions(f"requirements{part}.lock").items() for part in parts)
    assert command <= flows <= tests
    assert command <= server <= tests


def test_every_dependency_of_the_package_is_locked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"]
    required = {
        "": settings["project"]["dependencies"],
        "-spark": extras["spark"],
        "-serve": [*extras["serve"], *extras["sql"], *extras["search"]],
        "-java": extras["java"],
    }
    for part, wanted in required.items():
        locked = {package for package, _ in versions(f"requirements{part}.lock")}
        assert {re.split(r"[<>=!~\[ ]", text)[0] for text in wanted} <= locked


def test_spark_and_its_connector_have_the_same_version() -> None:
    spark = versions("requirements-spark.lock")["pyspark", ""]
    connector = next(jar for jar in pinned() if jar.name == "spark-sql-kafka-0-10_2.13")
    assert connector.revision == spark


def test_no_jar_is_pinned_twice() -> None:
    files = [jar.file_name for jar in pinned()]
    assert len(files) == len(set(files))
