"""CRC-32C in hardware: the extension of the ``crc32c`` package, without the package around it.

The package's own ``__init__`` asks for its version and brings a command line, which together take a tenth of a broker's
start. Where the extension is not found beside it, the package is imported as it is.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["crc32c"]


def _extension() -> ModuleType | None:
    package = find_spec("crc32c")
    for folder in (package and package.submodule_search_locations) or ():
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder) / f"_crc32c{suffix}"
            if path.is_file():
                loader = ExtensionFileLoader("crc32c._crc32c", str(path))
                module = module_from_spec(ModuleSpec(loader.name, loader, origin=str(path)))
                loader.exec_module(module)
                return module
    return None


def _package() -> ModuleType:
    import crc32c

    return crc32c


#: Of data, or of what follows data that has the checksum ``value``.
crc32c: Any = (_extension() or _package()).crc32c
