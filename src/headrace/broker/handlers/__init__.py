"""Which function answers which request.

A handler is given the broker and a request and gives back the response. Produce and Fetch are begun by the
connection itself (``begin``), because their answers wait for the disk or for new data; they are offered all
the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
    txn_offset_commit,
)
from headrace.wire.api import Api

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["HANDLERS", "OFFERED", "Handler"]

Handler = Callable[["Broker", "Request"], Awaitable[Any]]

HANDLERS: dict[Api, Handler] = {
    Api.LIST_OFFSETS: list_offsets.handle,
    Api.METADATA: metadata.handle,
    Api.OFFSET_COMMIT: offset_commit.handle,
    Api.OFFSET_FETCH: offset_fetch.handle,
    Api.FIND_COORDINATOR: find_coordinator.handle,
    Api.JOIN_GROUP: join_group.handle,
    Api.HEARTBEAT: heartbeat.handle,
    Api.LEAVE_GROUP: leave_group.handle,
    Api.SYNC_GROUP: sync_group.handle,
    Api.DESCRIBE_GROUPS: describe_groups.handle,
    Api.LIST_GROUPS: list_groups.handle,
    Api.API_VERSIONS: api_versions.handle,
    Api.CREATE_TOPICS: create_topics.handle,
    Api.DELETE_TOPICS: delete_topics.handle,
    Api.DELETE_RECORDS: delete_records.handle,
    Api.INIT_PRODUCER_ID: init_producer_id.handle,
    Api.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
    Api.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn.handle,
    Api.ADD_OFFSETS_TO_TXN: add_offsets_to_txn.handle,
    Api.END_TXN: end_txn.handle,
    Api.TXN_OFFSET_COMMIT: txn_offset_commit.handle,
    Api.DESCRIBE_CONFIGS: describe_configs.handle,
    Api.ALTER_CONFIGS: alter_configs.handle,
    Api.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
    Api.CREATE_PARTITIONS: create_partitions.handle,
    Api.DELETE_GROUPS: delete_groups.handle,
    Api.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
    Api.OFFSET_DELETE: offset_delete.handle,
    Api.DESCRIBE_CLUSTER: describe_cluster.handle,
    Api.DESCRIBE_PRODUCERS: describe_producers.handle,
    Api.DESCRIBE_TRANSACTIONS: describe_transactions.handle,
    Api.LIST_TRANSACTIONS: list_transactions.handle,
    Api.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
}

OFFERED = frozenset(HANDLERS) | {Api.PRODUCE, Api.FETCH}
