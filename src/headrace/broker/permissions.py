"""The permissions of the Kafka protocol: an operation on a type of resource, with the numbers of Kafka's ACLs.

Every handler declares the permissions that its API needs, as in Kafka's documentation. The broker does not enforce them
yet, because it has no authentication. So Metadata and the Describe APIs report every operation that is valid for the
resource, as Kafka does without an authorizer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = [
    "CLUSTER_OPERATIONS",
    "GROUP_OPERATIONS",
    "TOPIC_OPERATIONS",
    "Handle",
    "Handler",
    "Operation",
    "Permission",
    "Resource",
]


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


class Resource(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Permission(NamedTuple):
    """An operation that a request needs permission for, on each resource of this type that the request names."""

    operation: Operation
    resource: Resource


Handle = Callable[["Broker", "Request"], Awaitable[Any]]


class Handler(NamedTuple):
    """The function that handles an API, and the permissions that a request needs."""

    handle: Handle
    permissions: tuple[Permission, ...]


def _bits(*operations: Operation) -> int:
    """Encode operations as the bit field of Metadata and the Describe APIs."""
    return sum(1 << operation for operation in operations)


_TOPIC_AND_CLUSTER = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)

GROUP_OPERATIONS = _bits(
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
TOPIC_OPERATIONS = _bits(*_TOPIC_AND_CLUSTER, Operation.READ, Operation.WRITE, Operation.DELETE)
CLUSTER_OPERATIONS = _bits(*_TOPIC_AND_CLUSTER, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE)
