"""Which names a view may have: those of topics, with room for ``.dead`` behind it. No name becomes part of a path."""

from __future__ import annotations

from headrace.model.names import NAME_CHARS_MAX, name_fault, table_fault
from headrace.views.errors import NameRefused

__all__ = ["CHARS_MAX", "expect_view_name"]

CHARS_MAX = NAME_CHARS_MAX - len(".dead")


def expect_view_name(name: str) -> None:
    fault = name_fault(name) or table_fault(name)
    if fault is None and len(name) > CHARS_MAX:
        fault = f"the name of a view has at most {CHARS_MAX} characters, this one has {len(name)}"
    if fault is not None:
        raise NameRefused(
            f"{fault[:400]}; it cannot name a view", hint="use letters, digits, '.', '_' and '-'"
        )
