"""A file that is gone is told in several words by the libraries, and is the same trouble in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ops.served_delta import _is_gone
from headrace.views.errors import StoreError
from headrace.views.file_troubles import told_as

# As deltalake words it for a file of the log, for a checkpoint, and for one with rows.
WORDS = [
    "Kernel error: File not found: /lake/sales/_delta_log/00000000000000000001.json",
    "Kernel error: Object at location /lake/8.checkpoint.parquet not found: No such file or directory (os error 2)",
    "No such file or directory (os error 2)",
]


def trouble(words: str) -> tuple[type[StoreError], str, bool]:
    with pytest.raises(StoreError) as caught, told_as(Path("/lake/sales")):
        raise RuntimeError(words)
    return type(caught.value), caught.value.code, caught.value.retriable


@pytest.mark.parametrize("words", WORDS)
def test_a_missing_file_is_the_same_trouble_whatever_it_is_called(words: str) -> None:
    assert trouble(words) == trouble(WORDS[-1])
    assert trouble(words) != trouble("the file is garbled")


@pytest.mark.parametrize("words", WORDS)
def test_verification_reads_again_where_a_file_is_gone_and_not_where_it_is_garbled(words: str) -> None:
    assert _is_gone(RuntimeError(words))
    assert not _is_gone(RuntimeError("the file is garbled"))
