"""Bag of words: classes with one text are fitted, but not used to choose the strength."""

import warnings

import pytest

from lastword.probes import bag_of_words


@pytest.mark.parametrize("alone", [["sea"], ["sea", "sky", "sun", "ice", "fog", "dew", "elm"]])
def test_a_class_with_one_text_is_fitted_without_a_warning(alone):
    texts = [f"the {word} number {i}" for word in ("fox", "dog") for i in range(4)]
    labels = [text.split()[1] for text in texts]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words = bag_of_words([*texts, *(f"a {word}" for word in alone)], [*labels, *alone])
    assert [*words.predict([*texts, "a sea"])] == [*labels, "sea"]
    assert words.best_score_ == 1.0 and words.n_splits_ == 4
    grams = words.best_estimator_[0].transformer_list[1][1].vocabulary_
    assert "fox" in grams and {len(gram) for gram in grams} == {3, 4, 5}
    # The smallest class of two or more texts sets the number of folds.
    few = bag_of_words(texts[:6], labels[:6])
    assert few.n_splits_ == 2
