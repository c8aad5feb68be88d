from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.pressure import Account


class Client:
    def __init__(self, account: Account[Client]) -> None:
        self.account = account
        self.evicted = ""

    def evict(self, reason: str) -> None:
        assert not self.evicted
        self.evicted = reason
        # As a connection does when it is lost.
        self.account.hold(self, 0)


def test_the_one_that_has_held_longest_goes_first_however_little_it_holds() -> None:
    account: Account[Client] = Account("answers", 100)
    slow, busy, new = Client(account), Client(account), Client(account)
    account.hold(slow, 10)
    account.hold(busy, 60)
    account.hold(busy, 0)
    account.hold(busy, 40)
    account.hold(new, 51)
    assert "10 bytes" in slow.evicted
    assert not busy.evicted
    assert not new.evicted
    assert account.total == 91
    assert account.evicted == 1


def test_one_client_that_alone_holds_too_much_goes() -> None:
    account: Account[Client] = Account("requests", 100)
    greedy = Client(account)
    account.hold(greedy, 101)
    assert greedy.evicted
    assert account.total == 0


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=60))
def test_the_total_is_what_those_who_stayed_hold_and_never_above_the_limit(
    steps: list[tuple[int, int]],
) -> None:
    account: Account[Client] = Account("answers", 100)
    clients = [Client(account) for _ in range(6)]
    held = [0] * 6
    for who, size in steps:
        if clients[who].evicted:
            continue
        held[who] = size
        account.hold(clients[who], size)
        held = [0 if client.evicted else size for client, size in zip(clients, held, strict=True)]
        assert account.total == sum(held) <= 100
        assert account.share() <= 25
