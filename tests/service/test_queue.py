"""Whose turn it is, held to its rule without a model and without a thread."""

from hypothesis import given
from hypothesis import strategies as st

from lastword.service.worker import Order, Queue


class Entry(Order):
    def __init__(self, name: str, client: str, batch: bool = False) -> None:
        super().__init__(client=client, batch=batch)
        self.name = name


def names(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


def passes(queue: Queue[Entry], most: int) -> list[list[str]]:
    """The passes of all that waits."""
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


def test_a_batch_gives_way_after_each_pass_and_is_not_starved():
    own = [Entry(f"b{i}", "b", batch=True) for i in range(4)]
    queue = filled(*own, *(Entry(f"s{i}", f"s{i}") for i in range(4)))
    assert passes(queue, 2) == [["s0", "s1"], ["b0", "b1"], ["s2", "s3"], ["b2", "b3"]]


def test_who_leaves_is_out_at_once():
    gone, rest = Entry("a0", "a"), Entry("a1", "a")
    queue = filled(gone, rest)
    queue.discard(gone)
    queue.discard(gone)  # what is no longer there is no error
    assert len(queue) == 1 and names(queue.next(2)) == ["a1"]
    queue.discard(rest)
    assert len(queue) == 0 and queue.next(2) == []


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40), st.integers(1, 8))
def test_nobody_is_lost_and_no_pass_mixes_the_lanes(sent, most):
    entries = [Entry(str(i), *own) for i, own in enumerate(sent)]
    lane = {entry.name: entry.batch for entry in entries}
    done = passes(filled(*entries), most)
    assert sorted(name for own in done for name in own) == sorted(names(entries))
    assert all(len({lane[name] for name in own}) == 1 and len(own) <= most for own in done)
    for client in "abcd":  # first come, first served
        for batch in (False, True):
            own = [int(e.name) for e in entries if (e.client, e.batch) == (client, batch)]
            came = [int(n) for group in done for n in group if int(n) in own]
            assert came == own
