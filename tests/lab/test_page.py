"""The report of records: its blocks, its markup, and the page in a browser."""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from browser import PHONE, assert_accessible
from scipy.special import softmax
from synthetic import cells as cells_of
from synthetic import synthetic_cell

from lastword.errors import RecordError
from lastword.lab.evaluation.statistics import judge
from lastword.lab.report import build, page_data
from lastword.lab.report.build import report
from lastword.records.columns import read
from lastword.records.view import page_item, short
from lastword.rule.theta import Theta

THETA = Theta()


def unpack(block):
    return json.loads(gzip.decompress(base64.b64decode(block)))


@pytest.fixture(scope="module")
def records():
    first = synthetic_cell("org/model-a", "truthfulqa", 60, failed=1)
    second = synthetic_cell("org/model-b", "halueval-qa", 40, invariant=0.4)
    twin = synthetic_cell("org/model-a", "truthfulqa", 60, failed=1, invariant=0.3)
    return pd.concat([first, second, twin.assign(model="org/model-c")], ignore_index=True)


@pytest.fixture(scope="module")
def written(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return build.write(cells_of(records), THETA, folder, with_paper=True)


@pytest.fixture(scope="module")
def index(written):
    return written.paths[-1]


# Blocks


def test_packed_items_agree_with_their_records(records):
    blocks = page_data.data_blocks(cells_of(records), THETA)
    items = unpack(blocks["items"])
    assert len(items["texts"]) == 100  # models share texts
    texts = [[entry[0] for entry in cell["items"]] for cell in items["cells"]]
    assert texts[0] == texts[2]
    groups = records.groupby(["model", "benchmark"], sort=False)
    for place, (cell, (name, group)) in enumerate(zip(items["cells"], groups, strict=True)):
        assert (cell["model"], cell["benchmark"]) == name
        shown = unpack(blocks[f"cell-{place}"])
        for i, record in enumerate(group.to_dict("records")):
            identity, benchmark, question = items["texts"][texts[place][i]]
            text = unpack(blocks[f"texts-{benchmark}"])[str(texts[place][i])]
            assert (identity, text["prompt"]) == (record["id"], record["prompt"])
            assert question == short(record["question"], 300)
            assert text["candidates"] == list(record["candidates"])
            assert_same_item(shown[i], record)


def assert_same_item(shown, record):
    if isinstance(record["error"], str):
        assert record["error"] in shown["words"] and shown["error"] is True
        return
    np.testing.assert_allclose(shown["probabilities"], record["probabilities"], atol=1e-4)
    pi, S = (np.cumsum(panel["steps"], axis=1) / panel["unit"] for panel in shown["panels"])
    np.testing.assert_allclose(S, np.stack(record["trajectory"]), atol=6e-4)
    expected = np.exp(S) / np.exp(S).sum(axis=0)
    np.testing.assert_allclose(pi, expected, atol=2e-3)
    assert len(shown["gates"]) == len(record["gates"])
    assert [panel["blind"] for panel in shown["panels"]] == [[], []]
    blind = np.stack(record["trajectory"])[:, ::-1]
    whole = page_item(replace(read(record), blind_trajectory=blind), THETA)
    shares, scores = (np.cumsum(p["blind"], axis=1) / p["unit"] for p in whole["panels"])
    np.testing.assert_allclose(shares, softmax(blind, axis=0), atol=2e-3)
    np.testing.assert_allclose(scores, blind, atol=1e-3)


@pytest.mark.usefixtures("undrawn")
def test_a_sample_of_very_many_records_is_packed_and_noted(records, tmp_path, monkeypatch):
    monkeypatch.setattr(page_data, "MOST_SHOWN", 60)
    cells = cells_of(records)
    for cell, places in zip(cells, page_data.listed(cells), strict=True):
        rows = cell.records
        changed = ((rows["index"] != rows["base_index"]) & rows["error"].isna()).to_numpy()
        assert changed[places].sum() == min(20, changed.sum()) > 0
        assert len(places) == 20 and (np.diff(places) > 0).all()
    items = unpack(page_data.data_blocks(cells, THETA)["items"])
    assert [len(cell["items"]) for cell in items["cells"]] == [20] * 3
    index = build.write(cells, THETA, tmp_path).paths[-1]
    assert "60 of the 160 records are in this list" in index.read_text(encoding="utf-8")


# Markup


class Parsed(HTMLParser):
    """The tags of a page, its addresses and handlers, and its scripts by their types."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.scripts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "action") and v]
        self.links += [k for k, _ in attributes if k.startswith("on")]
        if tag == "script":
            self.scripts.append([dict(attributes).get("type"), ""])

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1][1] += data


def test_texts_of_records_are_not_markup_and_only_the_script_may_run(index, records):
    text = index.read_text(encoding="utf-8")
    parsed = Parsed(text)
    assert records["question"].str.contains("</script>").any() and "b" not in parsed.tags
    svg = r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+"
    assert all(re.fullmatch(rf"#\w+|data:,|{svg}", link) for link in parsed.links)
    data = [text for kind, text in parsed.scripts if kind == "text/plain"]
    assert data and all(re.fullmatch(r"[A-Za-z0-9+/=]+", text) for text in data)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    (main,) = [body for kind, body in parsed.scripts if kind is None]
    digest = base64.b64encode(hashlib.sha256(main.encode()).digest()).decode()
    assert re.search(r"script-src ([^;]+)", policy)[1].split() == [f"'sha256-{digest}'"]
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy


# Files and command


def test_a_report_contains_all_tables_and_figures(written):
    names = {path.name for path in written.paths}
    drawn = "regimes worked-example ablation per-model".split()
    tables = "results per-model ablation sweeps against-paper".split()
    assert {f"{stem}.{ending}" for stem in drawn for ending in ("pdf", "svg")} <= names
    assert {f"{stem}.{ending}" for stem in tables for ending in ("md", "csv")} <= names
    assert all(path.stat().st_size for path in written.paths)


def test_unreadable_records_and_unwritable_folders_are_errors(tmp_path, records):
    with pytest.raises(RecordError, match="no records"):
        report(tmp_path, tmp_path / "out")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RecordError, match="cannot write to"):
        build.write(cells_of(records), THETA, tmp_path / "file")


def test_items_without_labels_have_a_report(tmp_path):
    bare = synthetic_cell("org/model-a", "halueval-qa", 12)
    unknown = {name: np.nan for name in bare.columns if name.startswith("mc")}
    bare = bare.assign(truthful=None, **unknown)
    index = build.write(cells_of(bare), THETA, tmp_path).paths[-1]
    text = index.read_text(encoding="utf-8")
    assert "without labels to judge them by" in text and "nan" not in Parsed(text).tags
    assert not (tmp_path / "figures" / "regimes.pdf").exists()


# In a browser


@pytest.fixture
def view(index, chromium, request):
    """Yield the open page, and check at the end that it logged nothing; options by parameter."""
    with chromium.opened(index, **getattr(request, "param", {})) as watched:
        yield watched.page
        watched.assert_quiet()


def test_header_rows_filters_and_verdicts_count_the_same_items(records, view):
    parts = judge(cells_of(records))
    items, fixed, broken = ([getattr(v, n) for v in parts] for n in ("items", "fixed", "broken"))
    names, values = (view.locator(f".masthead {t}").all_inner_texts() for t in ("dt", "dd"))
    facts = dict(zip(names, values, strict=True))
    shown = [facts[name] for name in ("items", "answers fixed", "answers broken")]
    assert shown == [str(sum(counts)) for counts in (items, fixed, broken)]
    for place, counts in {3: items, 11: fixed, 12: broken}.items():
        column = view.locator(f".cells .row td:nth-child({place})").all_inner_texts()
        assert column == [str(count) for count in counts]
    total = f"{sum(items)} of {sum(items)} items · 60 of 60 for MC2 alone · 2 of 2 failed"
    assert view.inner_text(".count") == total
    for outcome, counts in {"fixed": fixed, "broken": broken}.items():
        view.select_option("select[name=outcome]", outcome)
        assert view.inner_text(".count").startswith(f"{sum(counts)} of {sum(items)} items · 0")
    view.fill("input[name=search]", "no such words")
    assert view.inner_text(".list") == "No item matches."


def test_the_page_filters_and_shows_an_item(view):
    view.select_option("select[name=operator]", "decisive")
    view.select_option("select[name=outcome]", "fixed")
    shown = int(view.inner_text(".count").split()[0])
    assert 0 < shown < 98 and view.locator(".list li").count() == shown
    view.locator(".list li button").first.click()
    view.wait_for_selector(".item .drawing .curve")
    view.click(".item .why summary")
    assert "All three gates hold" in view.inner_text(".item .told")
    assert view.locator(".item .drawing .chosen").count() == 1  # the chosen layer
    first = view.inner_text(".item h3")
    view.locator(".list li button").nth(1).click()
    view.wait_for_function("t => document.querySelector('.item h3').innerText !== t", arg=first)
    view.go_back()
    view.wait_for_function("t => document.querySelector('.item h3').innerText === t", arg=first)
    view.get_by_role("button", name="Score", exact=True).click()
    view.wait_for_function("document.querySelector('.item .axes').textContent.includes('nats')")


@pytest.mark.slow
def test_the_page_is_accessible(index, chromium):
    with chromium.opened(index) as watched:
        watched.page.locator(".list li button").nth(2).click()
        watched.page.wait_for_selector(".item .drawing .curve")
        watched.page.locator("#cell-0 .opener").click()
        assert_accessible(watched.page)


def test_cells_can_be_sorted_opened_and_browsed(view):
    heading = view.locator(".cells th button", has_text="ΔMC1")
    for expected in (sorted, lambda values: sorted(values, reverse=True)):
        heading.click()
        cells = view.locator(".cells .row td:nth-child(7)").all()
        values = [float(cell.get_attribute("data-value")) for cell in cells]
        assert values == expected(values) and len(set(values)) == 3
    view.locator("#cell-0 .opener").click()
    assert "On these 29 items" in view.inner_text("#cell-0 .verdict")
    view.locator("#cell-0 .browse").click()
    assert view.inner_text(".count").startswith("29 of 98 items · 30 of 60 ")
    view.select_option("select[name=outcome]", "failed")
    view.locator(".list li button").first.click()
    view.wait_for_selector(".item .told")
    assert "do not fit the context" in view.inner_text(".item .told")
    for place in range(view.locator("#figures figure").count()):
        figure = view.locator("#figures figure").nth(place)
        figure.scroll_into_view_if_needed()
        assert figure.locator("img").evaluate("image => image.naturalWidth") > 100


@pytest.mark.parametrize("view", [{"viewport": PHONE, "scheme": "dark"}], indirect=True)
def test_a_phone_shows_one_pane_at_a_time_and_dark_colours(view):
    ground = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", ground)[:3])) < 60
    view.locator(".list li button").nth(3).click()
    view.wait_for_selector(".item .drawing .curve")
    assert not view.locator(".list").is_visible()
    assert view.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    view.locator(".item .back").click()
    assert view.locator(".list").is_visible() and not view.locator(".item").is_visible()
