"""Short scripts of requests, one per API, that work in every version of the API.

A script gets a ``Conversation`` and a version, and records the responses. Scripts assert nothing: the same script runs
against Apache Kafka and the embedded broker, and the recorded responses are compared.
"""

from tests.wire.scripts.cluster import CLUSTER
from tests.wire.scripts.groups import GROUPS
from tests.wire.scripts.records import RECORDS
from tests.wire.scripts.topics import TOPICS
from tests.wire.scripts.transactions import TRANSACTIONS

__all__ = ["SCRIPTS"]

SCRIPTS = {**RECORDS, **TOPICS, **GROUPS, **CLUSTER, **TRANSACTIONS}
