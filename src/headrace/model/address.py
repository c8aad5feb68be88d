"""Addresses of stores: a variable of the environment in the place of what must not be written down, and no passwords
in what is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from headrace.errors import HeadraceError

__all__ = ["AddressMissing", "resolved", "shown"]

_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# To the last @: a password may hold one, and a slash, where somebody forgot to encode them.
_USER = re.compile(r"//.*@", re.DOTALL)
_SECRET = re.compile(
    r"((?:password|passfile|sslpassword|username|user)\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^&\s]*)",
    re.IGNORECASE | re.DOTALL,
)


class AddressMissing(HeadraceError):
    code = "HR-STORE-ADDRESS"


def resolved(address: str, environ: Mapping[str, str] = os.environ) -> str:
    """The address itself, or what the variable holds that it names as ``$NAME``."""
    found = _VARIABLE.fullmatch(address)
    if found is None:
        return address
    held = environ.get(found[1], "")
    if not held:
        raise AddressMissing(
            f"the variable {found[1]} is not set, and a store's address is in it",
            hint=f"export {found[1]}=..., or name the address in the app",
        )
    return held


def shown(address: str) -> str:
    """For people and logs: a variable by its name, an address without who logs in and how."""
    if _VARIABLE.fullmatch(address):
        return address
    return _SECRET.sub(r"\1...", _USER.sub("//", address))
