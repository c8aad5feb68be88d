"""What is tried of each API beyond crowded requests: what it can be made to keep, to compute and to answer.

Each case is a function of an attacker. ``CASES`` must have an entry for every API that the broker offers, an empty one
where the crowded requests are all there is to try: a test holds it against the broker's own table.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.faults import coordinator_amplifiers as coordinator
from bench.faults import log_amplifiers as log
from bench.faults.amplifier_steps import (
    PARTITIONS,
    WIDE,
    add_partitions,
    commit,
    create,
    form_group,
    hold,
    write_by_producers,
)
from bench.faults.attacker import Attacker
from headrace.wire import Api

__all__ = ["CASES", "Case", "prepare"]

Case = Callable[[Attacker], None]


def prepare(attacker: Attacker) -> None:
    """The names that crowded requests repeat: each stands for much."""
    create(attacker, WIDE, PARTITIONS)
    form_group(attacker, "group", bytes(900_000))
    commit(attacker, "group-offsets", range(PARTITIONS), "m" * 4_000)
    holder = hold(attacker, "transaction")
    add_partitions(attacker, holder, WIDE, range(PARTITIONS))
    write_by_producers(attacker, 0, 5_000)


CASES: dict[Api, tuple[Case, ...]] = {
    Api.PRODUCE: (log.producers_of_every_partition, log.records_without_keys),
    Api.FETCH: (
        log.sessions_of_unknown_topics,
        log.sessions_of_known_topics,
        log.fetches_that_wait,
        log.small_batches_before_large_ones,
    ),
    Api.LIST_OFFSETS: (log.times_in_bombs,),
    Api.METADATA: (log.topics_made_by_naming_them,),
    Api.OFFSET_COMMIT: (coordinator.offsets_of_many_groups, coordinator.offsets_with_wide_metadata),
    Api.OFFSET_FETCH: (coordinator.all_offsets_of_a_group_again, coordinator.all_offsets_of_many_groups),
    Api.FIND_COORDINATOR: (),
    Api.JOIN_GROUP: (
        coordinator.ids_that_are_never_joined_with,
        coordinator.short_ids_that_are_never_joined_with,
        coordinator.many_protocols,
        coordinator.subscriptions_of_many_topics,
    ),
    Api.HEARTBEAT: (),
    Api.LEAVE_GROUP: (),
    Api.SYNC_GROUP: (coordinator.assignments_for_nobody,),
    Api.DESCRIBE_GROUPS: (coordinator.one_wide_group_again, coordinator.many_wide_groups_described),
    Api.LIST_GROUPS: (coordinator.groups_with_long_names,),
    Api.API_VERSIONS: (),
    Api.CREATE_TOPICS: (log.topics_that_are_not_made, log.many_partitions),
    Api.DELETE_TOPICS: (),
    Api.DELETE_RECORDS: (),
    Api.INIT_PRODUCER_ID: (coordinator.transactional_ids,),
    Api.OFFSET_FOR_LEADER_EPOCH: (),
    Api.ADD_PARTITIONS_TO_TXN: (
        coordinator.one_transaction_again,
        coordinator.partitions_of_many_transactions,
    ),
    Api.ADD_OFFSETS_TO_TXN: (coordinator.groups_of_transactions,),
    Api.END_TXN: (),
    Api.TXN_OFFSET_COMMIT: (coordinator.pending_offsets,),
    Api.DESCRIBE_CONFIGS: (log.one_resource_by_many_keys, log.all_texts_of_the_broker),
    Api.ALTER_CONFIGS: (),
    Api.DESCRIBE_LOG_DIRS: (),
    Api.CREATE_PARTITIONS: (),
    Api.DELETE_GROUPS: (),
    Api.INCREMENTAL_ALTER_CONFIGS: (log.lists_of_many_items,),
    Api.OFFSET_DELETE: (),
    Api.DESCRIBE_CLUSTER: (),
    Api.DESCRIBE_PRODUCERS: (),
    Api.DESCRIBE_TRANSACTIONS: (),
    Api.LIST_TRANSACTIONS: (coordinator.patterns,),
    Api.DESCRIBE_TOPIC_PARTITIONS: (),
}
