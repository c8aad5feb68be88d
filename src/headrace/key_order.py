"""What happens to the order of keys when a topic gets more partitions.

A key's partition is its hash modulo their number. With more of them some keys move: their later records are in another
partition than their earlier ones, and nothing tells a reader which to take first. So a topic with keyed records does
not grow unless somebody asks for it knowing that, by the topic's config ``headrace.partitions.force``, which the growth
takes away again.
"""

from __future__ import annotations

from math import gcd

__all__ = ["FORCE_CONFIG", "share_that_moves", "what_moves"]

FORCE_CONFIG = "headrace.partitions.force"


def share_that_moves(before: int, after: int) -> float:
    """Which share of all keys is in another partition afterwards.

    A key stays where its hash leaves the same rest either way: ``before`` of every least common multiple.
    """
    return 1 - gcd(before, after) / after


def what_moves(topic: str, before: int, after: int) -> str:
    return (
        f"{topic} holds records with keys: with {after} instead of {before} partitions"
        f" {share_that_moves(before, after):.0%} of the keys move to another one, and the order of such a key's records"
        " across the change is no longer kept"
    )
