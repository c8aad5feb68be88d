"""Which scripts a page loads: the first one, what it imports, what those import, and so on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urljoin

__all__ = ["scripts_from"]

# An import at the beginning of a line, as it is written here; one within a function is made when it is wanted.
_IMPORTED = re.compile(rb'^(?:import|export)\b[^"\';]*"([^"\']+\.js)"', re.MULTILINE)


def scripts_from(first: str, scripts: Mapping[str, bytes]) -> list[str]:
    """By their addresses, the first to be known first."""
    found = {first: None}
    waiting = [first]
    while waiting:
        address = waiting.pop(0)
        for told in _IMPORTED.findall(scripts[address]):
            imported = urljoin(address, told.decode())
            if imported not in found:
                found[imported] = None
                waiting.append(imported)
    return [*found]
