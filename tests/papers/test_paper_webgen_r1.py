"""WebGen-R1: what failed a stage of the cascade is asked nothing more, and looks count only for pages that work.

Projects are written by hand; rewards, gates and weights are those of the recipe. The expected luminances are those of
WCAG 2, computed here. Not shown: that this trains better websites, which is measured.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from learning.lookup import bind
from learning.rewards import websites
from learning.sampling.scoring import scores_of
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "webgen-r1.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, FLAT, PLAIN = (STAGES[name] for name in ("trained", "flat", "plain"))
PAGES = {
    "index.html": {"texts": ["bakery", "bread"], "links": ["about.html"]},
    "about.html": {"texts": ["oven"], "links": ["index.html"]},
}
ROW = {
    "id": "r",
    "prompt": [{"role": "user", "content": "bakery"}],
    "answer": None,
    "metadata": json.dumps({"pages": PAGES}),
}
INDEX = '<h1>bakery</h1><p>bread</p><a href="about.html">about</a>'
ABOUT = '<p>oven</p><a href="index.html">index</a>'
PRETTY, UGLY = "color:#000;background:#fff", "color:#777;background:#777"
FLOOR, BROKEN, LOOKS = -1.0, -0.5, 0.5


def project(style=PRETTY, index=INDEX, about=ABOUT, more=""):
    body = f'<body style="{style}">'
    return f"<!-- index.html -->{body}{index}</body>\n<!-- about.html -->{body}{about}</body>{more}"


def count_calls(counted, name, measure):
    """A measure that notes its calls."""

    def counting(briefs, made):
        counted[name] += 1
        return measure(briefs, made)

    return counting


@pytest.fixture
def calls(monkeypatch):
    """How many projects each stage of the cascade was asked about."""
    counted = Counter()
    for name in ("_is_structured", "_builds", "_measure_content", "_measure_looks"):
        monkeypatch.setattr(websites, name, count_calls(counted, name, getattr(websites, name)))
    return counted


def score(text, stage=TRAINED, row=ROW):
    """The reward of a stage."""
    rewards = [bind(use) for use in stage.rewards]
    values = [scores_of(one, 0, {"rows": [row], "completions": [text], "samples": [None]}, {})[0] for one in rewards]
    return sum(float(one.weight) * value for one, value in zip(rewards, values, strict=True))


FAILS = {
    "a file too many": project(more="<!-- more.html --><body></body>"),
    "a file too few": project().split("<!-- about")[0],
    "a file twice": project() + project(),
    "text before the files": "Here it is: " + project(),
    "a script": project(index=INDEX + "<script>alert(1)</script>"),
    "no body": project().replace("<body", "<div").replace("</body", "</div"),
    "no files": INDEX,
    "too long": project(index=INDEX + " " * 20_000),
}


@pytest.mark.parametrize("name", FAILS)
def test_without_structure_nothing_is_built_and_nothing_judged(name, calls):
    assert score(FAILS[name]) == FLOOR
    assert calls == {"_is_structured": 1}


@pytest.mark.parametrize(
    "index",
    [
        INDEX.replace("</p>", ""),
        INDEX.replace("about.html", "more.html"),
        INDEX.replace("<h1>bakery</h1>", "<h1>bakery"),
        INDEX + "</p>",
        "<p><b>bakery bread</p></b>" + '<a href="about.html">about</a>',
    ],
)
def test_a_project_that_does_not_build_is_not_judged(index, calls):
    assert score(project(index=index)) == BROKEN
    assert calls == {"_is_structured": 1, "_builds": 1}


def test_a_page_whose_body_stays_open_does_not_build():
    assert score(project().replace("</body>\n", "")) == BROKEN


def test_pages_that_lack_something_have_no_looks(calls):
    """Four of five things that the brief asks for."""
    assert score(project(about=ABOUT.replace("oven", "stove"))) == pytest.approx(4 / 5)
    assert calls == {"_is_structured": 1, "_builds": 1, "_measure_content": 2}
    assert score(project(about="")) == pytest.approx(3 / 5)
    assert score(project(index=INDEX.replace("bread", "breads"))) == pytest.approx(4 / 5), "whole words"


def test_a_working_ugly_site_beats_a_pretty_one_that_does_not_build(calls):
    ugly, broken = score(project(UGLY)), score(project(index=INDEX.replace("</p>", "")))
    # All lines begin at the left edge, and no text can be read.
    assert (ugly, broken) == (1 + LOOKS * 0.5, BROKEN)
    assert calls["_measure_looks"] == 1


def test_with_all_gates_passed_only_the_looks_differ():
    """Black on white, all lines at one edge: the best there is."""
    assert score(project()) == pytest.approx(1 + LOOKS)
    indented = project(index=INDEX.replace("<p>", '<p style="margin-left:3em">'))
    # One of three lines on the first page is elsewhere: alignment 2/3 there, 1 on the second.
    assert score(indented) == pytest.approx(1 + LOOKS * np.mean([(1 + 2 / 3) / 2, 1.0]))


def luminance(gray):
    part = gray / 255
    return ((part + 0.055) / 1.055) ** 2.4 if part > 0.03928 else part / 12.92


@pytest.mark.parametrize(("ink", "ground"), [("#555", "#fff"), ("#999999", "#000"), ("#fff", "#999")])
def test_contrast_is_that_of_wcag(ink, ground):
    grays = [luminance(int(2 * colour[1] if len(colour) == 4 else colour[1:3], 16)) for colour in (ink, ground)]
    ratio = (max(grays) + 0.05) / (min(grays) + 0.05)
    got = score(project(f"color:{ink};background-color:{ground}")) - 1
    assert got == pytest.approx(LOOKS * (min((ratio - 1) / 6, 1.0) + 1) / 2)


def test_colours_have_their_weights():
    """Red, green and blue of WCAG; what is not a colour changes nothing."""
    assert [websites.measure_luminance(c) for c in ("#f00", "#0f0", "#0000ff")] == pytest.approx(
        [0.2126, 0.7152, 0.0722]
    )
    assert websites.measure_luminance("#fff") == pytest.approx(1.0)
    above = websites.Style(left=2, ink=0.5)
    assert websites.read_style("color:red;margin-left:-3em;text-align:right;x", above) == above
    assert websites.read_style("MARGIN-LEFT: 32px", above).left == 4


def test_a_page_is_drawn_to_cells():
    """Two characters a cell; a centred line has as much room on both sides; the rest of a long line is cut off."""
    texts = ['<p style="margin-left:3em">abcd</p>', '<p style="text-align:center">abcdef gh</p>', f"<p>{'x' * 99}</p>"]
    ink, ground = websites.draw_page(websites.read_page("".join(texts)))
    drawn = ~np.isnan(ink)
    assert [drawn[line].nonzero()[0].tolist() for line in range(4)] == [[3, 4], [5, 6, 7, 8, 9], [*range(16)], []]
    assert ink.shape == ground.shape == (16, 16)
    assert set(ink[drawn]) == {0.0}
    many = websites.read_page("<p>a</p>" * 99)
    assert (~np.isnan(websites.draw_page(many)[0])).sum() == 16


def test_text_of_one_block_is_one_line():
    page = websites.read_page("<p>a <b>b</b>\n c</p><p>d<br>e</p>")
    assert [text for text, _ in page.lines] == ["a b c", "d", "e"]


def test_a_row_without_pages_cannot_be_scored_and_a_wrong_one_is_named():
    bare = ROW | {"metadata": "{}"}
    assert websites.looks([bare], [project()]) == [None]
    with pytest.raises(StepError, match="row r: its `pages` must be a map"):
        websites.shows([ROW | {"metadata": json.dumps({"pages": {"a.html": {"text": "x"}}})}], [project()])


def test_without_gates_a_broken_site_is_paid_for_its_looks():
    broken = project(index=INDEX.replace("</p>", ""))
    assert score(broken, FLAT) == pytest.approx(1 + 0 + 1 + LOOKS * score_looks(broken))
    assert score(broken, FLAT) > score(project(about="")) > score(broken)
    assert score(project(UGLY), PLAIN) == score(project(), PLAIN) == 1.0


def score_looks(text):
    return websites.looks([ROW], [text])[0]


def test_the_trainings_differ_in_their_rewards_alone():
    trained = TRAINED.model_dump()
    for other in (FLAT, PLAIN):
        assert {key for key, value in other.model_dump().items() if trained[key] != value} == {"rewards"}
    assert STAGES["report"].rewards == TRAINED.rewards
    measured = {name: [use.use for use in stage.rewards] for name, stage in STAGES.items() if name.startswith("passed")}
    assert sorted(of for names in measured.values() for of in names) == [
        *("websites.builds", "websites.looks", "websites.shows", "websites.structured")
    ]


def test_the_author_writes_what_a_brief_asks_for_and_errs_in_four_ways():
    lessons, report = STAGES["lessons"], STAGES["report"]
    rows = bind(lessons.problems[0].model_copy(update={"size": 200}))()
    asked = {row["id"] for row in (*bind(lessons.problems[0])(), *bind(STAGES["briefs"].problems[0])())}
    assert not asked & {row["id"] for row in bind(report.tasks[0])()}
    author = bind(lessons.teacher)
    rng = np.random.default_rng(0)
    for rate in (0.0, 1.0):
        texts = [author.function(row, rng, error_rate=rate) for row in rows]
        stages = (websites.structured, websites.builds, websites.shows)
        passed = np.array([stage(rows, texts) for stage in stages])
        assert bool((passed == 1).all(axis=0).any()) == (rate == 0)
        assert rate or (passed == 1).all()
        looks = np.array(websites.looks(rows, texts))
        assert len(set(looks.round(3))) > 10, "tastes differ"
