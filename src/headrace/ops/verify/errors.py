"""Errors of a verification that cannot run. A wrong row does not raise an error; the report lists it.

CannotVerify            HR-VERIFY
├── NotServed           HR-VERIFY-NOT-SERVED    the store does not serve the view
├── NotDerived          HR-VERIFY-NOT-DERIVED   the flow has not started
├── StoreUnreadable     HR-VERIFY-STORE         the store cannot be read
├── NeverVerified       HR-VERIFY-NEVER         no earlier report exists
└── Outdated            HR-VERIFY-OUTDATED      the last report is of other rows than those served now
"""

from __future__ import annotations

from headrace.app_argument import app_argument
from headrace.errors import HeadraceError

__all__ = ["CannotVerify", "NeverVerified", "NotDerived", "NotServed", "Outdated", "StoreUnreadable"]


class CannotVerify(HeadraceError):
    code = "HR-VERIFY"


class NotServed(CannotVerify):
    code = "HR-VERIFY-NOT-SERVED"


class NotDerived(CannotVerify):
    code = "HR-VERIFY-NOT-DERIVED"


class StoreUnreadable(CannotVerify):
    code = "HR-VERIFY-STORE"


class NeverVerified(CannotVerify):
    code = "HR-VERIFY-NEVER"


class Outdated(CannotVerify):
    code = "HR-VERIFY-OUTDATED"

    def __init__(self, line: str) -> None:
        super().__init__(line, hint=f"verify again: headrace verify {app_argument()}")
