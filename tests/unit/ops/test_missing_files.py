"""The Delta library has several messages for a missing file. All become the same error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ops.verify.delta_snapshot import _is_missing_file
from headrace.stores.errors import StoreError
from headrace.stores.file_errors import translate_errors

# deltalake's messages for a missing file of the log, a missing checkpoint, and a missing file with rows.
MESSAGES = [
    "Kernel error: File not found: /lake/sales/_delta_log/00000000000000000001.json",
    "Kernel error: Object at location /lake/8.checkpoint.parquet not found: No such file or directory (os error 2)",
    "No such file or directory (os error 2)",
]


def error_for(message: str) -> tuple[type[StoreError], str, bool]:
    with pytest.raises(StoreError) as caught, translate_errors(Path("/lake/sales")):
        raise RuntimeError(message)
    return type(caught.value), caught.value.code, caught.value.retriable


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_for_a_missing_file_becomes_the_same_error(message: str) -> None:
    assert error_for(message) == error_for(MESSAGES[-1])
    assert error_for(message) != error_for("the file is garbled")


@pytest.mark.parametrize("message", MESSAGES)
def test_verify_retries_after_a_missing_file_but_not_after_a_damaged_file(message: str) -> None:
    assert _is_missing_file(RuntimeError(message))
    assert not _is_missing_file(RuntimeError("the file is garbled"))
