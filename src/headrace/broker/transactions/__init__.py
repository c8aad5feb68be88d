"""Transactions: who holds a transactional id, what is part of its transaction, and how it ends everywhere at once."""

from headrace.broker.transactions.answers import (
    DescribedTransaction,
    EndAnswer,
    InitAnswer,
    ListedTransaction,
)
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.ports import MarkedPartition, MarkedPartitions, ProducerIds
from headrace.broker.transactions.settings import TransactionSettings
from headrace.broker.transactions.transaction import State

__all__ = [
    "DescribedTransaction",
    "EndAnswer",
    "InitAnswer",
    "ListedTransaction",
    "MarkedPartition",
    "MarkedPartitions",
    "ProducerIds",
    "State",
    "TransactionCoordinator",
    "TransactionSettings",
]
