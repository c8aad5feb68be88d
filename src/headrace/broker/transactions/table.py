"""All transactional ids that are known, and the memory that their names take."""

from __future__ import annotations

from headrace.broker.sizes import text_bytes
from headrace.broker.transactions.transaction import Transaction

__all__ = ["TransactionTable"]


class TransactionTable(dict[str, Transaction]):
    """Changed by ``add`` and ``remove`` only. Invariant: ``ids_bytes`` is the sum over all ids."""

    def __init__(self) -> None:
        super().__init__()
        self.ids_bytes = 0

    def add(self, transaction: Transaction) -> Transaction:
        assert transaction.id not in self
        self[transaction.id] = transaction
        self.ids_bytes += text_bytes(transaction.id)
        return transaction

    def remove(self, transactional_id: str) -> None:
        """Nothing happens if it is not there."""
        if self.pop(transactional_id, None) is not None:
            self.ids_bytes -= text_bytes(transactional_id)
