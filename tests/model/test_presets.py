"""The fifteen models as data."""

from lastword.model.presets import presets
from lastword.report.published import read_published
from lastword.theta import Theta


def test_fifteen_models_are_the_published_grids_and_nine_mix():
    assert len(presets()) == 15 == len({p.hub for p in presets()})
    assert [p.branch for p in presets()].count("mix") == 9
    for preset in presets():
        assert preset.branch == ("mix" if preset.invariant > Theta().tau_I else "early")
    (grid,) = {tuple((c.model, c.invariant) for c in cells) for cells in read_published().values()}
    assert grid == tuple((p.model, p.invariant) for p in presets())
