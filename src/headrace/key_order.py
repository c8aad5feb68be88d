"""How adding partitions to a topic affects the order of the records of each key.

A key's partition is its hash modulo the number of partitions. With more partitions, some keys move: their later records
are in another partition than their earlier records, and a reader cannot know which records come first. So the broker
adds partitions to a topic with keyed records only if the topic has the config ``headrace.partitions.force``. Adding the
partitions removes that config.
"""

from __future__ import annotations

from math import gcd

__all__ = ["FORCE_CONFIG", "describe_moved_keys", "moved_share"]

FORCE_CONFIG = "headrace.partitions.force"


def moved_share(before: int, after: int) -> float:
    """The share of keys that change their partition.

    A key stays if its hash has the same remainder for both counts. Of any lcm(before, after) consecutive hashes,
    exactly ``before`` hashes stay.
    """
    return 1 - gcd(before, after) / after


def describe_moved_keys(topic: str, before: int, after: int) -> str:
    return (
        f"{topic} has records with keys: with {after} instead of {before} partitions,"
        f" {moved_share(before, after):.0%} of the keys move to another partition and lose the order of their"
        " records across the change"
    )
