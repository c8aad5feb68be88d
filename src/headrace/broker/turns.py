"""Turns of the event loop that a request with many items gives to others."""

from __future__ import annotations

import asyncio

__all__ = ["give_turn"]


async def give_turn(number: int, at_once: int) -> None:
    """Let others run after every ``at_once`` items; ``number`` counts the items from 1."""
    if number % at_once == 0:
        await asyncio.sleep(0)
