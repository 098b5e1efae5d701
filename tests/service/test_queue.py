"""The order of the queue, without a model and without threads."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from lastword.service.queue import Order, Queue


class Entry(Order):
    def __init__(self, name: str, client: str, batch: bool = False) -> None:
        super().__init__(client=client, batch=batch, future=None)
        self.name = name


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


def passes(queue: Queue[Entry], most: int) -> list[list[str]]:
    """Return the passes until nothing waits."""
    done = []
    while entries := queue.next(most):
        queue.take(entries)
        done.append(names(entries))
    return done


def filled(*entries: Entry) -> Queue[Entry]:
    queue = Queue[Entry]()
    for entry in entries:
        queue.add(entry)
    return queue


def test_a_batch_and_single_requests_alternate():
    batch = [Entry(f"b{i}", "b", batch=True) for i in range(4)]
    queue = filled(*batch, *(Entry(f"s{i}", f"s{i}") for i in range(4)))
    assert passes(queue, 2) == [["s0", "s1"], ["b0", "b1"], ["s2", "s3"], ["b2", "b3"]]


def test_a_discarded_entry_leaves_at_once():
    gone, rest = Entry("a0", "a"), Entry("a1", "a")
    queue = filled(gone, rest)
    queue.discard(gone)
    queue.discard(gone)  # a second time is no error
    assert len(queue) == 1 and names(queue.next(2)) == ["a1"]
    queue.discard(rest)
    assert len(queue) == 0 and queue.next(2) == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40), st.integers(1, 8))
def test_no_entry_is_lost_and_no_pass_mixes_batches_with_single_requests(sent, most):
    entries = [Entry(str(i), client, batch) for i, (client, batch) in enumerate(sent)]
    lane = {entry.name: entry.batch for entry in entries}
    groups = passes(filled(*entries), most)
    order = [name for group in groups for name in group]
    assert sorted(order) == sorted(names(entries))
    assert all(len({lane[name] for name in group}) == 1 and len(group) <= most for group in groups)
    for client, batch in product("abcd", (False, True)):  # first come, first served
        expected = names([e for e in entries if (e.client, e.batch) == (client, batch)])
        assert [name for name in order if name in expected] == expected
