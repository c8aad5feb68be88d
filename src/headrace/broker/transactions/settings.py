"""What the transaction coordinator allows and how long it waits; units are in the names.

Where Apache Kafka has the same setting its name is given, and the default is Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TransactionSettings"]


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    #: ``transaction.max.timeout.ms``
    timeout_ms_max: int = 900_000
    #: ``transactional.id.expiration.ms``: seven days.
    id_kept_ms: int = 7 * 24 * 60 * 60 * 1000

    #: How often time-outs are looked at while there are any; also how finely a stall of the process is
    #: noticed.
    tick_interval_ms: int = 1_000
    #: A tick that comes later than this is a stall: every running time-out is put off by as much.
    stall_ms_min: int = 1_000
    #: How soon a marker is tried again that a partition did not take.
    retry_ms: int = 1_000

    #: Kafka has no limit but the protocol's 32,767.
    id_chars_max: int = 1_024
    ids_max: int = 30_000
    #: All ids, which one answer to ListTransactions holds.
    all_ids_bytes_max: int = 8 << 20
    partitions_per_transaction_max: int = 10_000
    groups_per_transaction_max: int = 1_000
    group_id_chars_max: int = 1_024
    #: Over all open transactions.
    all_partitions_max: int = 300_000
    all_groups_bytes_max: int = 8 << 20
