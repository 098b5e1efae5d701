"""The order of the queue, without a model and without threads."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from lastword.service.queue import Order, Queue


def names(orders: list[Order]) -> list[str]:
    return [order.name for order in orders]  # type: ignore[attr-defined]


def entry(name: str, client: str, batch: bool = False) -> Order:
    order = Order(client=client, batch=batch)
    order.name = name  # type: ignore[attr-defined]
    return order


def passes(queue: Queue, most: int) -> list[list[str]]:
    """Return the passes until nothing waits."""
    done = []
    while orders := queue.next(most):
        queue.take(orders)
        done.append(names(orders))
    return done


def filled(*orders: Order) -> Queue:
    queue = Queue()
    for order in orders:
        queue.add(order)
    return queue


def test_a_batch_and_single_requests_alternate():
    batch = [entry(f"b{i}", "b", batch=True) for i in range(4)]
    queue = filled(*batch, *(entry(f"s{i}", f"s{i}") for i in range(4)))
    assert passes(queue, 2) == [["s0", "s1"], ["b0", "b1"], ["s2", "s3"], ["b2", "b3"]]


def test_a_discarded_entry_leaves_at_once():
    gone, rest = entry("a0", "a"), entry("a1", "a")
    queue = filled(gone, rest)
    queue.discard(gone)
    queue.discard(gone)  # a second time is no error
    assert len(queue) == 1 and names(queue.next(2)) == ["a1"]
    queue.discard(rest)
    assert len(queue) == 0 and queue.next(2) == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40), st.integers(1, 8))
def test_no_entry_is_lost_and_no_pass_mixes_batches_with_single_requests(sent, most):
    entries = [entry(str(i), client, batch) for i, (client, batch) in enumerate(sent)]
    lane = {str(i): batch for i, (_, batch) in enumerate(sent)}
    groups = passes(filled(*entries), most)
    order = [name for group in groups for name in group]
    assert sorted(order) == sorted(names(entries))
    assert all(len({lane[name] for name in group}) == 1 and len(group) <= most for group in groups)
    for client, batch in product("abcd", (False, True)):  # first come, first served
        expected = names([e for e in entries if (e.client, e.batch) == (client, batch)])
        assert [name for name in order if name in expected] == expected
