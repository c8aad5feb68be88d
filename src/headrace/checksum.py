"""CRC-32C in hardware: loads the C extension of the ``crc32c`` package, without the package's Python code.

The package's ``__init__`` reads the package version and imports a command line. That takes a tenth of a broker's start
time. If the C extension is not found, the whole package is imported instead.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Buffer", "crc32c"]

Buffer = bytes | bytearray | memoryview


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


#: ``crc32c(data)``. To continue a checksum, pass the checksum of the preceding data: ``crc32c(data, value)``.
crc32c: Any = (_extension() or _package()).crc32c
