"""Rules of the whole suite: the plugins, Hypothesis without time limits, and the Java of the set-up on the path."""

from __future__ import annotations

import gc
import os
import sys

from hypothesis import HealthCheck, settings

from tools import java
from tools.console import SetupError

# pytest rewrites the asserts of test modules. With PYTHONDONTWRITEBYTECODE each process of each run would repeat that.
sys.dont_write_bytecode = False

# No time limit per example: a busy machine is not a failure. A failure prints the blob that replays it.
settings.register_profile(
    "headrace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")

pytest_plugins = [
    "tests.plugins.no_skips",
    "tests.plugins.soak",
    "tests.plugins.capabilities",
    "tests.plugins.run_seed",
    "tests.plugins.schedule",
    "tests.plugins.lost_workers",
    "tests.plugins.kafka_half",
    "tests.support.flows",
    "tests.support.s3",
    "tests.support.servers",
]


def pytest_configure() -> None:
    """PySpark reads ``JAVA_HOME``; everything else that needs Java calls ``java``."""
    try:
        home = java.java_home()
    except SetupError:
        return  # Tests without Java still run; the others name what is missing.
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, because they stay until the end. Walking them at each
    collection took a third of the CPU time of tests whose server runs in this process.
    """
    gc.collect()
    gc.freeze()
