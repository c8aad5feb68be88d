"""Why something cannot be verified at all; that it is not right is no error, but what a report says.

CannotVerify            HR-VERIFY
├── NotServed           HR-VERIFY-NOT-SERVED    the store has no such view, or none that serves
├── NotDerived          HR-VERIFY-NOT-DERIVED   the flow has not begun
├── StoreUnreadable     HR-VERIFY-STORE         the store's file cannot be read
└── NeverVerified       HR-VERIFY-NEVER         there is no earlier result to show
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["CannotVerify", "NeverVerified", "NotDerived", "NotServed", "StoreUnreadable"]


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
