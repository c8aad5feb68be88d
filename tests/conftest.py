"""What holds for every test: nothing is skipped, and the Java that the set-up chose is the one on the path."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tools import java
from tools.console import SetupError

# No example has a time limit: a busy machine is not a failure. What is found is replayed by its printed blob.
settings.register_profile(
    "headrace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")

pytest_plugins = [
    "tests.plugins.no_skips",
    "tests.plugins.capabilities",
    "tests.plugins.lost_workers",
    "tests.plugins.kafka_half",
    "tests.support.flows",
    "tests.support.s3",
]


# Files with long tests begin first, so that no process is left alone with one at the end.
_LONGEST_FIRST = (
    "tests/verify",
    "tests/flow",
    "tests/examples",
    "tests/wire",
    "tests/crash",
    "tests/cli",
    "tests/unit/log",
    "tests/unit/records",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        places = (at for at, part in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(f"{part}/"))
        return next(places, len(_LONGEST_FIRST))

    items.sort(key=rank)


def pytest_configure() -> None:
    """PySpark reads ``JAVA_HOME``; everything else that needs Java calls ``java``."""
    try:
        home = java.java_home()
    except SetupError:
        return  # The tests without Java still run; the others name what is missing.
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
