"""What an element of a request costs, by its API, so that one limit bounds the work of any request.

Most are a look-up. A batch is walked and written, a topic gets files: fewer of them fit into one request.
"""

from __future__ import annotations

from headrace.wire.api import Api

__all__ = ["elements_max_of"]

_WEIGHTS = {
    Api.PRODUCE: 3,
    Api.CREATE_TOPICS: 6,
    Api.DELETE_TOPICS: 6,
    Api.CREATE_PARTITIONS: 6,
    Api.DELETE_RECORDS: 12,
    Api.DESCRIBE_CONFIGS: 2,
    Api.ALTER_CONFIGS: 2,
    Api.INCREMENTAL_ALTER_CONFIGS: 2,
}


def elements_max_of(api: Api, limit: int) -> int:
    """How many elements a request may hold, where ``limit`` holds for the cheapest."""
    return max(1, limit // _WEIGHTS.get(api, 1))
