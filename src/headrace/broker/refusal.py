"""A request, or one item of it, that is answered with an error number of the Kafka protocol."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.wire.codes import ErrorCode

__all__ = ["Refusal"]


class Refusal(HeadraceError):
    """Raised where a rule is checked, turned into the item's ``error_code`` and ``error_message`` by the
    handler.

    ``text`` is ``None`` where the number says all there is to say.
    """

    code = "HR-BROKER-REFUSED"

    def __init__(self, error_code: ErrorCode, text: str | None = None) -> None:
        super().__init__(text or error_code.name)
        self.error_code = error_code
        self.text = text
