"""Which operations a client may do, as the bits in which Metadata and the Describe calls send them.

There are no logins and no permissions yet, so the answer is what Kafka without an authorizer says:
everything that makes sense for the resource.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CLUSTER_OPERATIONS", "TOPIC_OPERATIONS", "Operation"]


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_ON_BOTH = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)

TOPIC_OPERATIONS = _bits(*_ON_BOTH, Operation.READ, Operation.WRITE, Operation.DELETE)
CLUSTER_OPERATIONS = _bits(*_ON_BOTH, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE)
