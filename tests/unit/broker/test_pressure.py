from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.net.client_limits import Account


class Client:
    def __init__(self, account: Account[Client]) -> None:
        self.account = account
        self.evicted = ""

    def evict(self, reason: str) -> None:
        assert not self.evicted
        self.evicted = reason
        # A real connection does this when it is lost.
        self.account.set_usage(self, 0)


def test_the_client_that_has_used_memory_for_longest_is_evicted_first() -> None:
    account: Account[Client] = Account("answers", 100)
    slow, busy, new = Client(account), Client(account), Client(account)
    account.set_usage(slow, 10)
    account.set_usage(busy, 60)
    account.set_usage(busy, 0)
    account.set_usage(busy, 40)
    account.set_usage(new, 51)
    assert "10 bytes" in slow.evicted
    assert not busy.evicted
    assert not new.evicted
    assert account.total == 91
    assert account.evicted == 1


def test_a_single_client_above_the_limit_is_evicted() -> None:
    account: Account[Client] = Account("requests", 100)
    greedy = Client(account)
    account.set_usage(greedy, 101)
    assert greedy.evicted
    assert account.total == 0


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=60))
def test_the_total_is_the_sum_of_the_remaining_clients_and_never_above_the_limit(
    steps: list[tuple[int, int]],
) -> None:
    account: Account[Client] = Account("answers", 100)
    clients = [Client(account) for _ in range(6)]
    used_bytes = [0] * 6
    for number, size in steps:
        if clients[number].evicted:
            continue
        used_bytes[number] = size
        account.set_usage(clients[number], size)
        used_bytes = [0 if client.evicted else size for client, size in zip(clients, used_bytes, strict=True)]
        assert account.total == sum(used_bytes) <= 100
        assert account.share() <= 25
