"""Errors of Spark during a derivation are translated for the user."""

from __future__ import annotations

import pytest

from headrace.app import App
from headrace.model.declarations import Flow
from headrace.ops.verify.derivation import Derivations
from headrace.ops.verify.errors import CannotVerify


@pytest.fixture
def flow() -> Flow:
    app = App("shop")
    declare = app.flow(reads=[app.topic("in", key="id")], writes=app.topic("out", key="id"), name="sum")
    return declare(lambda rows: rows)


@pytest.mark.parametrize(
    "spark_message",
    [
        "File worker.py, line 9\nModuleNotFoundError: No module named 'headrace.flow'\n at org.apache.spark",
        'java.io.IOException: Cannot run program "/opt/shop/bin/python3": error=2, No such file or directory',
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11",
    ],
)
def test_an_error_for_executors_without_headrace_says_what_to_install(flow: Flow, spark_message: str) -> None:
    error = Derivations.translate_error(flow, RuntimeError(spark_message))
    assert isinstance(error, CannotVerify)
    assert "Spark's Python workers cannot run headrace" in error.message
    assert error.detail in spark_message
    assert "PYSPARK_PYTHON" in error.hint


def test_any_other_error_is_not_mistaken_for_a_missing_package(flow: Flow) -> None:
    error = Derivations.translate_error(flow, RuntimeError("No module named 'pandas_of_the_user'"))
    assert "Python workers" not in error.message
