"""Imports all modules of the command line, so that forked commands need not import them. The imports open no
connection and start no thread.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import headrace.cli

__all__: list[str] = []

for module in walk_packages(headrace.cli.__path__, "headrace.cli."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
