"""What the forked commands find already imported; none of it opens a connection or starts a thread."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import headrace.cli

__all__: list[str] = []

for module in walk_packages(headrace.cli.__path__, "headrace.cli."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
