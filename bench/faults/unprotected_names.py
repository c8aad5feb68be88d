"""The product with names that are believed; see ``bench.faults.unprotected``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["believed_app_names", "no_page_names"]


@contextlib.contextmanager
def believed_app_names() -> Iterator[None]:
    """Any name will do for an app and its parts, in this process, for as long as the block lasts."""
    from headrace.model import name_mistakes

    known: Callable[..., Any] = vars(name_mistakes)["name_fault"]
    vars(name_mistakes)["name_fault"] = lambda name: None
    try:
        yield
    finally:
        vars(name_mistakes)["name_fault"] = known


def no_page_names() -> None:
    """A file of the page is read from wherever its name leads."""
    from headrace.serve.page import page_routes
    from headrace.serve.page.page_files import PageFile

    folder = Path(page_routes.__file__).parent / "files"
    answer = vars(page_routes)["_answer"]

    async def anywhere(call: Any) -> Any:
        body = (folder / call.names["file"]).read_bytes()
        return answer(call, PageFile(body, "text/plain"))

    for route in page_routes.PAGE_ROUTES:
        if "{file:path}" in route.path:
            object.__setattr__(route, "handle", anywhere)
