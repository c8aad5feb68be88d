"""ListTransactions: the transactional ids, filtered by state, producer, duration or name."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

from headrace.broker.pattern import InvalidPattern, Pattern, search
from headrace.broker.transactions import State
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_STATES = {state.value for state in State}


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    listed = broker.transactions.list_transactions(
        states=set(message.state_filters),
        producer_ids=set(message.producer_id_filters),
        open_ms_min=message.duration_filter,
    )
    if message.transactional_id_pattern:
        try:
            pattern = Pattern(message.transactional_id_pattern)
            found = await search(pattern, [transaction.id for transaction in listed], broker.matcher)
        except InvalidPattern as error:
            # The response has no field for a text.
            broker.notices.limit(
                "invalid-pattern", f"{error.message}; {error.hint}", {"client": request.client_host}
            )
            return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        listed = list(compress(listed, found))
    state_of = m.ListTransactionsResponse.TransactionState
    return m.ListTransactionsResponse(
        unknown_state_filters=[
            state for state in dict.fromkeys(message.state_filters) if state not in _STATES
        ],
        transaction_states=[
            state_of(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state,
            )
            for transaction in listed
        ],
    )
