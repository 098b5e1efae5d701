"""Cross-fitting: no item is answered by a fit on its group."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastword.trust.crossfit import cross_fit, deal_folds


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(2, 6))
def test_folds_contain_whole_groups_and_differ_by_at_most_one(groups, count):
    order = sorted(set(groups))
    folds = deal_folds(groups, order, count)
    of_group = [{fold for fold, h in zip(folds, groups, strict=True) if h == g} for g in order]
    assert all(len(folds_of) == 1 for folds_of in of_group)
    sizes = np.bincount([folds_of.pop() for folds_of in of_group], minlength=count)
    assert np.ptp(sizes) <= 1


def test_each_item_is_answered_by_a_fit_on_the_other_folds():
    folds = np.array([2, 0, 1, 0, 2])

    def answer(rest, tested):
        assert not (rest & tested).any() and (rest | tested).all()
        fitted_on = "".join(map(str, np.flatnonzero(rest)))
        return {"text": np.array([f"{i} by {fitted_on}" for i in np.flatnonzero(tested)])}

    answers = cross_fit(answer, folds)["text"].tolist()
    assert answers == ["0 by 123", "1 by 024", "2 by 0134", "3 by 024", "4 by 123"]
