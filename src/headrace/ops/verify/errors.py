"""Errors of a verification that cannot run. A wrong row does not raise an error; the report lists it.

CannotVerify            HR-VERIFY
├── NotServed           HR-VERIFY-NOT-SERVED    the store does not serve the view
├── NotDerived          HR-VERIFY-NOT-DERIVED   the flow has not started
├── StoreUnreadable     HR-VERIFY-STORE         the store cannot be read
└── NeverVerified       HR-VERIFY-NEVER         no earlier report exists
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
