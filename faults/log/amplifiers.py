"""Amplification cases per API, in addition to crowded requests: clients that cause much state, computation or large
responses.

Each case is a function that receives an attacker. ``CASES`` must have an entry for every API of the broker; the entry
is empty if crowded requests are enough. A test compares ``CASES`` with the broker's own table of APIs.
"""

from __future__ import annotations

from collections.abc import Callable

from faults.log import coordinator_amplifiers, log_amplifiers
from faults.log.amplifier_steps import (
    PARTITIONS,
    WIDE,
    add_partitions,
    commit,
    create,
    form_group,
    init_producer,
    write_by_producers,
)
from faults.log.attacker import Attacker
from headrace.wire import Api

__all__ = ["CASES", "Case", "prepare"]

Case = Callable[[Attacker], None]


def prepare(attacker: Attacker) -> None:
    """Create the large objects whose names the crowded requests repeat."""
    create(attacker, WIDE, PARTITIONS)
    form_group(attacker, "group", bytes(900_000))
    commit(attacker, "group-offsets", range(PARTITIONS), "m" * 4_000)
    producer = init_producer(attacker, "transaction")
    add_partitions(attacker, producer, WIDE, range(PARTITIONS))
    write_by_producers(attacker, 0, 5_000)


CASES: dict[Api, tuple[Case, ...]] = {
    Api.PRODUCE: (log_amplifiers.producers_of_every_partition, log_amplifiers.records_without_keys),
    Api.FETCH: (
        log_amplifiers.sessions_of_unknown_topics,
        log_amplifiers.sessions_of_known_topics,
        log_amplifiers.fetches_that_wait,
        log_amplifiers.small_batches_before_large_ones,
    ),
    Api.LIST_OFFSETS: (log_amplifiers.times_in_bombs, log_amplifiers.offsets_for_many_clients),
    Api.METADATA: (log_amplifiers.topics_made_by_naming_them,),
    Api.OFFSET_COMMIT: (
        coordinator_amplifiers.offsets_of_many_groups,
        coordinator_amplifiers.offsets_with_wide_metadata,
    ),
    Api.OFFSET_FETCH: (
        coordinator_amplifiers.all_offsets_of_a_group_again,
        coordinator_amplifiers.all_offsets_of_many_groups,
        coordinator_amplifiers.all_offsets_for_many_clients,
    ),
    Api.FIND_COORDINATOR: (),
    Api.JOIN_GROUP: (
        coordinator_amplifiers.ids_that_are_never_joined_with,
        coordinator_amplifiers.short_ids_that_are_never_joined_with,
        coordinator_amplifiers.many_protocols,
        coordinator_amplifiers.subscriptions_of_many_topics,
    ),
    Api.HEARTBEAT: (),
    Api.LEAVE_GROUP: (),
    Api.SYNC_GROUP: (coordinator_amplifiers.assignments_without_members,),
    Api.DESCRIBE_GROUPS: (
        coordinator_amplifiers.one_wide_group_again,
        coordinator_amplifiers.many_wide_groups_described,
    ),
    Api.LIST_GROUPS: (coordinator_amplifiers.groups_with_long_names,),
    Api.API_VERSIONS: (),
    Api.CREATE_TOPICS: (log_amplifiers.topics_that_are_not_made, log_amplifiers.many_partitions),
    Api.DELETE_TOPICS: (log_amplifiers.wide_topics_that_are_deleted,),
    Api.DELETE_RECORDS: (),
    Api.INIT_PRODUCER_ID: (coordinator_amplifiers.transactional_ids,),
    Api.OFFSET_FOR_LEADER_EPOCH: (),
    Api.ADD_PARTITIONS_TO_TXN: (
        coordinator_amplifiers.one_transaction_again,
        coordinator_amplifiers.partitions_of_many_transactions,
    ),
    Api.ADD_OFFSETS_TO_TXN: (coordinator_amplifiers.groups_of_transactions,),
    Api.END_TXN: (coordinator_amplifiers.transactions_over_many_partitions,),
    Api.TXN_OFFSET_COMMIT: (coordinator_amplifiers.pending_offsets,),
    Api.DESCRIBE_CONFIGS: (
        log_amplifiers.one_resource_by_many_keys,
        log_amplifiers.all_texts_of_the_broker,
        log_amplifiers.configs_for_many_clients,
    ),
    Api.ALTER_CONFIGS: (),
    Api.DESCRIBE_LOG_DIRS: (),
    Api.CREATE_PARTITIONS: (log_amplifiers.topics_of_bombs_that_grow,),
    Api.DELETE_GROUPS: (),
    Api.INCREMENTAL_ALTER_CONFIGS: (log_amplifiers.lists_of_many_items,),
    Api.OFFSET_DELETE: (coordinator_amplifiers.offsets_that_are_deleted,),
    Api.DESCRIBE_CLUSTER: (),
    Api.DESCRIBE_PRODUCERS: (),
    Api.DESCRIBE_TRANSACTIONS: (),
    Api.LIST_TRANSACTIONS: (coordinator_amplifiers.patterns,),
    Api.DESCRIBE_TOPIC_PARTITIONS: (log_amplifiers.partitions_for_many_clients,),
}
