"""ListTransactions: the transactional ids, filtered by state, producer, duration or name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.transactions import Pattern, PatternRefused, State
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_STATES = {state.value for state in State}


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    pattern = None
    if message.transactional_id_pattern:
        try:
            pattern = Pattern(message.transactional_id_pattern)
        except PatternRefused:
            return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    listed = broker.transactions.list_transactions(
        states=set(message.state_filters),
        producer_ids=set(message.producer_id_filters),
        open_ms_min=message.duration_filter,
        pattern=pattern,
    )
    state_of = m.ListTransactionsResponse.TransactionState
    return m.ListTransactionsResponse(
        unknown_state_filters=[state for state in message.state_filters if state not in _STATES],
        transaction_states=[
            state_of(transactional_id=one.id, producer_id=one.producer_id, transaction_state=one.state)
            for one in listed
        ],
    )
