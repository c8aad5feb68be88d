"""What Spark raises while a flow is derived again, in the user's terms."""

from __future__ import annotations

import pytest

from headrace.app import App
from headrace.model.flow import Flow
from headrace.ops.deriving import Deriving
from headrace.ops.errors import CannotVerify


@pytest.fixture
def flow() -> Flow:
    app = App("shop")
    declare = app.flow(reads=[app.topic("in", key="id")], writes=app.topic("out", key="id"), name="sum")
    return declare(lambda rows: rows)


@pytest.mark.parametrize(
    "said",
    [
        "File worker.py, line 9\nModuleNotFoundError: No module named 'headrace.flow'\n at org.apache.spark",
        'java.io.IOException: Cannot run program "/opt/shop/bin/python3": error=2, No such file or directory',
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11",
    ],
)
def test_executors_without_headrace_are_named_with_what_to_install(flow: Flow, said: str) -> None:
    error = Deriving.told(flow, RuntimeError(said))
    assert isinstance(error, CannotVerify)
    assert "Spark's Python workers cannot run headrace" in error.message
    assert error.detail in said
    assert "PYSPARK_PYTHON" in error.hint


def test_any_other_error_is_not_taken_for_it(flow: Flow) -> None:
    error = Deriving.told(flow, RuntimeError("No module named 'pandas_of_the_user'"))
    assert "Python workers" not in error.message
