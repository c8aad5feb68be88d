"""Short conversations with a server, one per API, that make sense in every version of it.

A script takes a ``Talk`` and a version and notes down answers. Scripts state nothing about what is right: the same one
is held with Apache Kafka and with the embedded broker, and the notes are compared.
"""

from tests.wire.scripts.cluster import CLUSTER
from tests.wire.scripts.groups import GROUPS
from tests.wire.scripts.records import RECORDS
from tests.wire.scripts.topics import TOPICS
from tests.wire.scripts.transactions import TRANSACTIONS

__all__ = ["SCRIPTS"]

SCRIPTS = {**RECORDS, **TOPICS, **GROUPS, **CLUSTER, **TRANSACTIONS}
