from __future__ import annotations

import subprocess
import sys

import pytest

import headrace

HEAVY = ("pyspark", "confluent_kafka", "pandas", "pyarrow", "rich", "typer", "asyncio")


def test_the_package_exports_exactly_the_pinned_names() -> None:
    assert set(headrace.__all__) == {"App", "Digits"}
    assert all(getattr(headrace, name).__name__ == name for name in headrace.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = headrace.Nothing


@pytest.mark.parametrize(
    ("program", "also_not"),
    [
        ("import headrace", ("msgspec", "headrace.model", "headrace.app")),
        ("import headrace, headrace.stores; headrace.App('shop').topic('clicks')", ()),
        ("import headrace.model.graph, headrace.model.codec.codec, headrace.model.evolution", ()),
    ],
)
def test_declaring_an_app_imports_nothing_slow(program: str, also_not: tuple[str, ...]) -> None:
    script = f"import sys; {program}; print([name for name in {HEAVY + also_not!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
