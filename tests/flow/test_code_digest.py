"""The digest includes what code reads from modules; lookups by name at run time are refused."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.model.code_digest import HiddenState, code_digest

RATE = 3


def readers_of(settings: Any) -> list[Any]:
    """Functions that read ``RATE`` of a module, each by a different expression."""

    def imported(number: int) -> Any:
        import print_rates  # type: ignore[import-not-found]

        return sum(print_rates.RATE for _ in range(number))

    def renamed(number: int) -> Any:
        import print_rates as module_alias  # type: ignore[import-not-found]

        return sorted(range(number), key=lambda item: item * module_alias.RATE)

    def in_a_variable(number: int) -> Any:
        other = settings
        return [item * other.RATE for item in range(number)]

    def by_default(number: int, of: Any = settings) -> Any:
        return number * of.RATE

    def of(module: Any, number: int) -> Any:
        return number * module.RATE

    class Priced:
        rates = settings

        def __init__(self) -> None:
            self.settings_module = settings

        def __call__(self, number: int) -> Any:
            return number * self.settings_module.RATE

        @classmethod
        def price(cls, number: int) -> Any:
            return number * cls.rates.RATE

    table = {"rates": settings}
    priced = Priced()
    partial_function = functools.partial(of, settings)
    return [
        imported,
        renamed,
        in_a_variable,
        by_default,
        lambda number: of(settings, number),
        lambda number: partial_function(number),
        lambda number: priced(number),
        Priced.price,
        lambda number: number * table["rates"].RATE,
        lambda number: number * getattr(settings, "".join(("RA", "TE"))),
        lambda number: number * vars(settings)["RATE"],
    ]


def test_the_digest_changes_with_an_attribute_read_through_any_reference_to_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "print_rates.py").write_text("RATE = 2\nLOCK = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings: Any = importlib.import_module("print_rates")
    functions = readers_of(settings)
    before = [code_digest(function) for function in functions]
    assert [code_digest(function) for function in functions] == before
    monkeypatch.setattr(settings, "RATE", 3)
    after = [code_digest(function) for function in functions]
    assert [index for index, text in enumerate(before) if text == after[index]] == []


def test_the_digest_ignores_attributes_of_a_module_that_the_code_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "print_prices.py").write_text(
        "import threading\nRATE = 2\nOTHER = 1\nLOCK = threading.Lock()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    prices: Any = importlib.import_module("print_prices")

    def inside(number: int) -> Any:
        import print_prices as module_alias  # type: ignore[import-not-found]

        return [item * module_alias.RATE for item in range(number)]

    functions = [inside, lambda number: sum(prices.RATE for _ in range(number))]
    before = [code_digest(function) for function in functions]
    monkeypatch.setattr(prices, "OTHER", 2)
    assert [code_digest(function) for function in functions] == before


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda number: number * int(os.getenv("RATE", "2")), "os.getenv"),
        (lambda number: number * globals()["RATE"], "globals"),
        (lambda number: number * importlib.import_module("math").pi, "importlib.import_module"),
        (lambda number: number * len(os.environ), "os.environ"),
    ],
    ids=["getenv", "globals", "import_module", "environ"],
)
def test_a_lookup_by_name_at_run_time_is_refused(function: Any, named: str) -> None:
    with pytest.raises(HiddenState) as hidden:
        code_digest(function)
    assert hidden.value.variable == named
