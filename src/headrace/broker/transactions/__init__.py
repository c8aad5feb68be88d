"""Transactions: the producer that owns each transactional id, its open transaction, and its commit or abort."""

from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.interface import (
    DescribedTransaction,
    EndResult,
    InitResult,
    ListedTransaction,
    MarkedPartition,
    MarkedPartitions,
    ProducerIds,
    TransactionContext,
    TransactionSettings,
)
from headrace.broker.transactions.transaction import State

__all__ = [
    "DescribedTransaction",
    "EndResult",
    "InitResult",
    "ListedTransaction",
    "MarkedPartition",
    "MarkedPartitions",
    "ProducerIds",
    "State",
    "TransactionContext",
    "TransactionCoordinator",
    "TransactionSettings",
]
