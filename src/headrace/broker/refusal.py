"""The exception that refuses a request, or one item of a request, with an error code of the Kafka protocol."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.wire.codes import ErrorCode

__all__ = ["Refusal"]


class Refusal(HeadraceError):
    """Raised by a check. The handler copies its ``error_code`` and ``text`` to the response.

    ``text`` is ``None`` if the code alone explains the error.
    """

    code = "HR-BROKER-REFUSED"

    def __init__(self, error_code: ErrorCode, text: str | None = None) -> None:
        super().__init__(text or error_code.name)
        self.error_code = error_code
        self.text = text
