"""Whose turn it is, and what waits: held to their promises without a model and without a thread."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import Item
from lastword.service.orders import ALONE, ASK, BATCH, Order, Promise
from lastword.service.queues import Queues
from lastword.service.refusal import Refusal
from lastword.service.turns import Lane, Turns
from lastword.text.messages import Message

LANES = (ALONE, BATCH, ASK)
LONGEST = 1.0  # seconds of a turn
# Who waits, and how long whoever is next then has the model.
STEPS = st.lists(
    st.tuples(st.sets(st.sampled_from(LANES), min_size=1), st.floats(0.01, LONGEST)),
    min_size=1,
    max_size=60,
)


def taken(steps) -> list[tuple[Lane, float]]:
    """The lanes that had the model one after the other, with their seconds."""
    turns, log = Turns.of(*LANES), []
    for waiting, seconds in steps:
        lane, turns = turns.next(waiting)
        assert lane in waiting
        turns = turns.after(lane, seconds)
        log.append((lane, seconds))
    return log


@given(STEPS)
def test_no_branch_falls_back_by_more_than_one_turn(steps):
    turns = Turns.of(*LANES)
    for waiting, seconds in steps:
        lane, turns = turns.next(waiting)
        turns = turns.after(lane, seconds)
        had = turns.seconds
        assert abs(had["item",] - had[ASK]) <= LONGEST + 1e-6
        assert abs(had[ALONE] - had[BATCH]) <= LONGEST + 1e-6


@given(STEPS, st.sampled_from(LANES))
def test_nobody_starves_however_the_others_come(steps, patient):
    log = taken((waiting | {patient}, seconds) for waiting, seconds in steps)
    own = sum(seconds for lane, seconds in log if lane == patient)
    everybody = sum(seconds for _, seconds in log)
    share = 1 / 2 if patient == ASK else 1 / 4
    assert own >= share * everybody - 2 * LONGEST


@given(st.lists(st.floats(0.01, LONGEST), min_size=40, max_size=80))
def test_where_all_wait_questions_have_half_and_items_half_of_each_kind(seconds):
    had: defaultdict[Lane, float] = defaultdict(float)
    for lane, span in taken((set(LANES), span) for span in seconds):
        had[lane] += span
    everybody = sum(had.values())
    assert had[ASK] == pytest.approx(everybody / 2, abs=LONGEST)
    assert had[ALONE] == pytest.approx(everybody / 4, abs=2 * LONGEST)
    assert had[BATCH] == pytest.approx(everybody / 4, abs=2 * LONGEST)


def test_of_equals_who_comes_alone_goes_first_then_a_batch_then_a_question():
    log = taken([(set(LANES), 1.0)] * 4)
    assert [lane for lane, _ in log] == [ALONE, ASK, BATCH, ASK]


def test_who_was_away_has_saved_nothing_up():
    log = taken([({BATCH}, 1.0)] * 50 + [({ALONE, BATCH}, 1.0)] * 4)
    assert [lane for lane, _ in log[50:]] == [ALONE, ALONE, BATCH, ALONE]  # one turn ahead, not 50


def test_turns_are_a_value():
    turns = Turns.of(*LANES)
    assert turns.after(ASK, 1.0) == turns.after(ASK, 1.0) != turns == Turns.of(*LANES)


# What waits


def order(lane=ALONE, deadline=1e9) -> Order:
    work = (step for step in range(3)) if lane == ASK else Item("w5", ("w6", "w7"))
    batch = 1 if lane == BATCH else None
    return Order(work, "decide", Promise(deadline), batch=batch, since=0.0)


def queues(*orders: Order, together=64) -> Queues:
    """Queues in which these have been read and wait for the model."""
    queued = Queues({ALONE: 64, BATCH: 64, ASK: 64}, together, 2**23)
    for one in orders:
        queued.add(one)
    while queued.read(slow=False):
        queued.sort(0.0, slow=False)
    return queued


def run(queued: Queues, orders: list[Order], seconds: float) -> None:
    """A pass that answers the orders; a question has its answer at once."""
    queued.start(orders)
    for one in orders:
        one.give("answer")
    queued.end(orders[0], seconds)


def next_turn(queued: Queues, now: float) -> tuple[list[Order], float]:
    """Whose turn it is, and when: what is left of batches has rested by then."""
    now += 0.0 if (turn := queued.turn(now)) else queued.rest(now)
    return turn or queued.turn(now), now


@given(st.lists(st.tuples(st.sampled_from(LANES), st.floats(0, 40)), max_size=30))
def test_each_order_is_answered_once_or_told_its_deadline(those):
    orders = [order(lane, deadline) for lane, deadline in those]
    queued, now = queues(*orders), 0.0
    while (following := next_turn(queued, now))[0]:
        (first, *_), now = following
        if first.kind == "item":
            assert first.future.deadline >= now  # nothing is computed that nobody waits for
        run(queued, [first], 1.0)
        now += 1.0
    assert queued.waiting() == [] and queued.in_hand == []
    for one in orders:
        error = one.future.exception(timeout=0)
        assert error is None or (isinstance(error, Refusal) and error.code == "deadline")


@given(st.lists(st.sampled_from(LANES), min_size=1, max_size=30), st.integers(1, 5))
def test_within_a_lane_the_oldest_goes_first(lanes, together):
    orders = [order(lane) for lane in lanes]
    queued, answered, now = queues(*orders, together=together), list[Order](), 0.0
    while (following := next_turn(queued, now))[0]:
        turn, now = following
        assert len(turn) <= together
        run(queued, turn, 1.0)
        answered += turn
    assert len(answered) == len(orders)
    for lane in LANES:
        assert [o for o in answered if o.lane == lane] == [o for o in orders if o.lane == lane]


def test_a_full_queue_gives_the_places_of_those_who_left_away():
    queued = Queues({ALONE: 1, BATCH: 1, ASK: 1}, 64, 2**23)
    first = order()
    queued.add(first)
    queued.add(order(BATCH))
    queued.add(order(ASK))
    for lane in LANES:
        with pytest.raises(Refusal, match="wait already") as refusal:
            queued.add(order(lane))
        assert refusal.value.code == "queue_full" and refusal.value.retry_after == 1
    first.future.cancel()
    queued.add(order())
    assert len(queued.waiting("item")) == 2


def test_who_is_refused_is_told_how_long_the_others_take():
    queued = queues(*(order() for _ in range(4)), together=2)
    run(queued, queued.turn(0.0), 6.0)  # three seconds each
    for _ in range(62):
        queued.add(order())
    with pytest.raises(Refusal) as refusal:
        queued.add(order())
    assert refusal.value.retry_after == 64 * 3


def batched(number: int) -> Order:
    return Order(Item("w5", ("w6", "w7")), "decide", Promise(1e9), batch=number, since=0.0)


@given(st.integers(8, 64), st.lists(st.integers(0, 5), max_size=80))
def test_batches_leave_places_for_one_more_and_for_all_who_come_alone(places, numbers):
    queued = Queues({ALONE: 2, BATCH: places, ASK: 1}, 64, 2**23)
    counts = dict.fromkeys(numbers, 0)
    for number in numbers:
        if counts[number] + 1 <= max(1, places // (len(counts) + 1)):
            queued.add(batched(number))  # within what all of them together leave each
            counts[number] += 1
    queued.add(batched(99))
    queued.add(order())
    queued.add(order())


def test_one_batch_alone_takes_half_of_the_places():
    queued = Queues({ALONE: 1, BATCH: 8, ASK: 1}, 64, 2**23)
    for _ in range(4):
        queued.add(batched(1))
    with pytest.raises(Refusal) as refusal:
        queued.add(batched(1))
    assert refusal.value.code == "queue_full"
    queued.add(batched(2))


def long(characters: int, **more) -> Order:
    return Order(Item("x" * (characters - 4), ("w6",)), "decide", Promise(1e9), **more)


def test_long_orders_share_what_they_may_hold_and_short_ones_always_have_a_place():
    queued = Queues({ALONE: 10, BATCH: 10, ASK: 1}, 64, 10_000)
    queued.add(long(4_000))
    queued.add(long(5_000))
    with pytest.raises(Refusal) as refusal:
        queued.add(long(2_000))
    assert refusal.value.code == "queue_full"
    for _ in range(7):
        queued.add(long(1_000))
    queued.add(long(9_000, batch=1))  # of another lane


def test_one_long_order_has_its_place_however_long_it_is():
    Queues({ALONE: 10, BATCH: 10, ASK: 1}, 64, 10_000).add(long(50_000))


def test_nobody_waits_until_what_is_long_has_been_read():
    queued = Queues({ALONE: 64, BATCH: 64, ASK: 1}, 64, 2**23)
    said = (Message("user", "w5"),)
    talk = Order(Item("", ("w6",), messages=said), "decide", Promise(1e9))
    first, second, short = long(200_000), long(200_000), order()
    for one in (first, talk, second, short):
        queued.add(one)
    assert queued.read(slow=True) == [first, talk]  # and no more than is read at a time
    assert queued.read(slow=False) == [short] and len(queued.waiting()) == 4
    queued.sort(0.0, slow=True)
    assert queued.read(slow=True) == [second]
    assert list(queued.items) == [first, talk]


def test_who_comes_alone_has_a_pass_without_the_items_of_batches():
    alone, other, bulk = order(), order(), order(BATCH)
    queued = queues(bulk, alone, other)
    assert queued.turn(0.0) == [alone, other]
    run(queued, [alone, other], 1.0)
    assert queued.turn(0.0) == [bulk]


def test_a_pass_of_batches_is_short_while_others_come_alone():
    bulk = [batched(number) for number in range(20)]
    queued = queues(*bulk)
    assert queued.turn(0.0) == bulk
    alone = order()
    alone.since = 100.0
    queued.add(alone)
    queued.read(slow=False)
    queued.sort(100.0, slow=False)
    assert queued.turn(100.0) == [alone]
    run(queued, [alone], 1.0)
    short = queued.turn(101.0)
    assert short == bulk[: len(short)] and 1 < len(short) < 20
    assert queued.turn(103.0) == bulk  # nobody has come alone for a while


def test_what_cannot_be_answered_in_time_is_told_so_when_it_comes():
    def counted(deadline: float) -> Order:
        one = order(deadline=deadline)
        one.tokens = 744
        return one

    first, second = counted(1e9), counted(1e9)
    queued = queues(first, second)
    run(queued, [first], 10.0)  # a hundredth of a second a token, and a pass is 256 more
    late, timely = counted(14.0), counted(16.0)
    for one in (late, timely):
        queued.add(one)
        queued.read(slow=False)
        queued.sort(0.0, slow=False)
    refusal = late.future.exception(timeout=0)
    assert isinstance(refusal, Refusal) and refusal.code == "queue_full"
    assert refusal.retry_after == 1 and "deadline" in str(refusal)
    assert list(queued.items) == [second, timely]


def test_a_batch_is_short_and_leaves_time_while_others_come_alone():
    queued, one = queues(*(order(BATCH) for _ in range(9))), order()
    run(queued, queued.turn(0.0)[:1], 9.0)  # nobody comes alone
    queued.add(one)
    queued.read(slow=False)
    queued.sort(0.0, slow=False)
    now = one.since
    assert queued.rest(now) == 0.0 and queued.turn(now) == [one]
    run(queued, [one], 0.1)
    batch = queued.turn(now + 0.1)
    assert [o.lane for o in batch] == [BATCH] * 2
    run(queued, batch, 0.1)
    # Four times as long as the pass, from when the last came: nobody waits any more.
    assert queued.rest(now + 0.2) == pytest.approx(0.2) and queued.turn(now + 0.2) == []
    assert queued.rest(now + 0.4) == pytest.approx(0.0)
    batch = queued.turn(now + 0.41)
    assert [o.lane for o in batch] == [BATCH] * 2
    run(queued, batch, 9.0)
    assert queued.rest(now + 2.5) == 0.0 and len(queued.turn(now + 2.5)) == 4  # who came has left


def test_the_more_come_alone_for_each_batch_the_longer_it_rests():
    queued = queues(batched(1), batched(1), batched(2), *(order() for _ in range(12)))
    alone = queued.turn(0.0)
    assert {o.lane for o in alone} == {ALONE} and len(alone) == 12
    run(queued, alone[:2], 1.0)
    batch = queued.turn(1.0)
    run(queued, batch, 0.5)
    # Ten wait, each as two batches, beside one batch.
    assert queued.rest(1.5) == pytest.approx(0.5 * 2 * 10)
    run(queued, alone[2:], 0.1)  # no longer than for those who wait, and a little for who may come
    assert queued.rest(alone[-1].since) == pytest.approx(4 * 0.5)
    assert queued.rest(alone[-1].since + 2.0) == 0.0


def test_a_batch_queues_no_more_than_it_may_have_answered_in_half_its_deadline():
    def counted(tokens: int, number: int) -> Order:
        one = batched(number)
        one.future.deadline, one.tokens = one.since + 20.0, tokens
        return one

    queued = queues(counted(744, 1))
    run(queued, queued.turn(0.0), 5.0)  # a two-hundredth of a second a token, and 256 a pass
    for _ in range(2):
        queued.add(counted(900, 1))
        queued.read(slow=False)
        queued.sort(0.0, slow=False)
    with pytest.raises(Refusal) as refusal:
        queued.add(counted(900, 1))
    assert refusal.value.code == "queue_full"
    queued.add(counted(900, 2))  # another's first
