"""How much memory one response may take while it is built.

A few bytes can ask for much: a list of names becomes the descriptions of all that they name. A handler counts each item
before it builds it. The first one always fits, so that a client which asks again for the rest makes progress. From the
first one that does not fit, all are answered with an error that clients retry.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["ResponseRoom"]

_TURN_BYTES = 1 << 20


class ResponseRoom:
    def __init__(self, broker: Broker, request: Request) -> None:
        self.bytes_max = broker.limits.response_bytes_max
        self.is_full = False
        self._broker = broker
        self._request = request
        self._taken = 0
        self._next_turn = _TURN_BYTES

    def take(self, size: int) -> bool:
        """Count an item of ``size`` bytes; false if it does not fit."""
        if not self.is_full and self._taken and self._taken + size > self.bytes_max:
            self.is_full = True
            api, client = self._request.api.title, self._request.client_host
            self._broker.notices.limit(
                "response-full",
                f"the response to {api} from {client} is answered in part: headrace.response.max.bytes is"
                f" {self.bytes_max}",
                {"api": api, "client": client},
            )
        if not self.is_full:
            self._taken += max(size, 1)
        return not self.is_full

    async def give_turn(self) -> None:
        """Let others run, if much was built since they last did."""
        if self._taken >= self._next_turn:
            self._next_turn = self._taken + _TURN_BYTES
            await asyncio.sleep(0)
