"""An answer that has an error for each partition of the request, topic by topic, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.wire.codes import ErrorCode

__all__ = ["partition_errors"]


def partition_errors(
    topics: Iterable[Any],
    errors: Iterable[ErrorCode],
    topic_of: Callable[..., Any],
    partition_of: Callable[..., Any],
) -> list[Any]:
    """``topics`` are the request's; the errors come in the order of their partitions."""
    left = iter(errors)
    return [
        topic_of(
            name=topic.name,
            partitions=[
                partition_of(partition_index=partition.partition_index, error_code=next(left))
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
