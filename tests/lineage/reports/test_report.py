"""The report: whole, self-contained, and nothing in it can break out of its place."""

import json
import re
from html.parser import HTMLParser

import pytest

from lineage.layout import Layout
from lineage.reports.curves import read_curves
from lineage.reports.graph import draw_steps
from lineage.reports.report import draw_charts, write_report
from schemas.manifest import InputRecord, Manifest, Output
from schemas.plan import Input, Plan, Step

HOSTILE = '<script>alert("x")</script>'
VOID = {"meta", "path", "rect", "br"}
OPTIONAL = {"td", "th", "tr"}


def step(name, kind, *needs):
    inputs = tuple(Input(port=f"in.{need}", steps=(need,), type="policy") for need in needs)
    outputs = {"model": "policy"}
    return Step(
        name=name,
        stage=name,
        kind=kind,
        settings={},
        seed=0,
        inputs=inputs,
        outputs=outputs,
        code={},
        key=key(name),
        identity={},
    )


def key(name):
    return name.encode().hex().ljust(64, "0")[:64]


def received(port, step):
    return InputRecord(port=port, step=step, key=key(step), output="model", digest="d" * 64, type="policy")


def manifest(name, kind, seconds=1.5, inputs=(), **more):
    inputs = inputs or (received("model", "base"),)
    outputs = {"model": Output(type="policy", digest="e" * 64, dvc="f.dir", files=())}
    times = {"started": "2026-01-02T03:04:05+00:00", "seconds": seconds, "cpu_seconds": 12.5, "peak_rss": 345_000_000}
    return Manifest(
        key=key(name),
        kind=kind,
        identity={},
        step=name,
        recipe="r",
        run="x",
        seed=0,
        inputs=inputs,
        outputs=outputs,
        commit="abcdef0123456789",
        **times,
        **more,
    )


EVALUATION = {
    "confidence": 0.95,
    "problems": 300,
    "table": [
        {"model": m, "family": f, "metric": "accuracy", "value": v, "low": v - 0.05, "high": v + 0.05, "n": 300}
        for m, v in (("base", 0.0612), ("tuned", 0.7431))
        for f in ("all", "chain_sum")
    ],
    "comparisons": [
        {
            "model": "tuned",
            "against": "base",
            "family": "all",
            "metric": "accuracy",
            "value": 0.6819,
            "low": 0.61,
            "high": 0.75,
            "n": 300,
            "p_value": 0.00013,
            "detectable": 0.05,
        }
    ],
    "gates": [{"passed": False, "on_fail": "stop", "text": "accuracy of tuned 0.7431, wanted 0.9"}],
    "samples": [
        {
            "family": "chain_sum",
            "prompt": "1 + 2 =",
            "answer": "3",
            "completions": {"base": HOSTILE, "tuned": "3"},
            "scores": {"base": None, "tuned": 1.0},
        }
    ],
}
CURATION = {
    "type": "chat",
    "rows": 5000,
    "kept": 4321,
    "dropped": {"duplicate": 600, "contaminated": 79},
    "evaluations": [{"name": "held out", "problems": 600, "rows_dropped": 79}],
}
PRACTICE = {
    "experiences": ["in step 1 <b>search</b>"],
    "before": [],
    "taught": [
        {
            "round": 0,
            "problem": "4-2",
            "best": "search: 4-2",
            "worst": "6",
            "learnt": ["in step 1 <b>search</b>"],
            "dropped": [],
        },
    ],
}
WRITTEN = {
    "written": [
        {"what": "tool", "name": "spell", "attempt": 0, "accepted": False, "reasons": ["spell('a') gives <i>"]},
        {"what": "tool", "name": "spell", "attempt": 1, "accepted": True, "reasons": []},
    ]
}


@pytest.fixture
def page(tmp_path):
    layout = Layout(tmp_path)
    steps = [step("base", "init"), step("clean", "curate"), step("tuned", "rl", "base", "clean")]
    steps += [step("clerk", "agent"), step("practised", "practice", "base", "clerk")]
    steps += [step("broken", "merge", "tuned"), step("left", "sft", "broken"), step("eval", "evaluate", "tuned")]
    plan = Plan(
        recipe=HOSTILE, file="r.yaml", profile="tiny", steps=(*steps, step("later", "python", "eval")), resolved={}
    )
    manifests = {
        "base": manifest("base", "init", seconds=33.3),
        "clean": manifest("clean", "curate", details=CURATION),
        "tuned": manifest("tuned", "rl", details={"notices": ["3 of 9 <completions> were cut"]}),
        "eval": manifest(
            "eval",
            "evaluate",
            inputs=(received("models.base", "base"), received("models.tuned", "tuned")),
            details=EVALUATION,
        ),
        "clerk": manifest("clerk", "agent", details=WRITTEN),
        "practised": manifest("practised", "practice", details=PRACTICE),
    }
    folder = layout.artifact("rl", key("tuned"))
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": i, "time": 0.0, "reward": i / 99, "loss": float("nan")}) for i in range(100)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    named = {"base": "cached", "clean": "done", "tuned": "done", "broken": "failed", "left": "skipped", "eval": "done"}
    states = {name: {"state": state} for name, state in named.items()}
    states["broken"]["reason"] = "tensor <x> differs"
    layout.run("run-7").mkdir(parents=True)
    began = {"type": "run", "run": "run-7", "state": "started", "recipe_commit": "c0ffee" * 6, "recipe_dirty": True}
    (layout.run("run-7") / "events.jsonl").write_text(json.dumps(began) + "\n")
    return write_report(plan, states, manifests, layout, "run-7").read_text()


class Reader(HTMLParser):
    """Collects text, tags and attributes, and holds tags that must be closed to it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.seen, self.attributes = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in OPTIONAL:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_all_states_and_numbers_are_there_and_every_tag_is_closed(page):
    reader = Reader(page)
    assert reader.open == []
    text = " ".join(" ".join(reader.words).split())
    for state in ("cached", "done", "failed", "skipped", "pending"):
        assert re.search(rf"\d {state}\b", text), state
    for phrase in ("0.061", "0.743", "+0.682", "0.0001", "4,321 of 5,000 rows", "79", "33.3 s", "12.5", "345.0 MB"):
        assert phrase in text, phrase
    for phrase in ("in step 1 <b>search</b>", "search: 4-2", "spell('a') gives <i>", "1 experiences, 0 before"):
        assert phrase in text, phrase
    for phrase in (
        "tensor <x> differs",
        "3 of 9 <completions> were cut",
        "wanted 0.9",
        "abcdef012345",
        "eeeeeeeeeeee",
        "0 → 1",
        "c0ffeec0ffee + changes",
        "99 step",
        "1 + 2 =",
        "run-7",
    ):
        assert phrase in text, phrase
    assert text.count(HOSTILE) >= 3


def test_notices_come_first_then_gates_then_results(page):
    body = page[page.index("<h2>Notices") :]
    order = ("3 of 9", "<h2>Steps", "wanted 0.9", "+0.682", "<h2>Curves", "<h2>Cost")
    places = [body.index(text) for text in order]
    assert places == sorted(places)


def test_the_report_opens_with_what_got_better_what_failed_and_what_it_cost(page):
    words = Reader(page[page.index("</header>") : page.index("<h2>Notices")].removeprefix("</header>")).words
    lines = [line for line in map(str.strip, words) if line]
    assert lines[0] == "eval: accuracy of tuned − base (its parent): +0.682 (+0.610 to +0.750, 300 problems): higher"
    assert lines[1].startswith("Gate of eval: failed. ")
    assert "wanted 0.9" in lines[1]
    assert lines[-1].startswith("Spent in this run: ")
    assert "core-seconds" in lines[-1]


def test_nothing_is_loaded_and_nothing_breaks_out(page):
    reader = Reader(page)
    assert "script" not in reader.seen
    assert not {"link", "img", "iframe", "object"} & set(reader.seen)
    assert not {"src", "href"} & {name for name, _ in reader.attributes}
    assert "http" not in page
    assert "url(" not in page


def test_the_graph_goes_from_left_to_right():
    steps = (step("a", "x"), step("b", "x"), step("c", "x", "a", "b"), step("d", "x", "c", "a"))
    plan = Plan(recipe="r", file="r", steps=steps, resolved={})
    picture = draw_steps(plan, {"a": "done"})
    at = {node.name: node for node in picture.nodes}
    assert at["a"].x == at["b"].x < at["c"].x < at["d"].x
    assert at["a"].y != at["b"].y
    assert len(picture.edges) == 4
    assert (at["a"].state, at["b"].state) == ("done", "pending")
    assert len({(node.x, node.y) for node in picture.nodes}) == 4
    assert [edge.count("C") for edge in picture.edges] == [1, 1, 1, 2]  # a → d keeps clear of c


def test_long_curves_are_averaged_and_keep_their_ends(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"step": i, "loss": i % 2}) + "\n" for i in range(1000)))
    (curve,) = read_curves(file)
    assert (curve.first, curve.last) == (0, 1)
    assert [tick.value for tick in curve.across] == [0, 999]
    assert curve.path.count("L") == 199  # groups of five
    assert [tick.value for tick in curve.up] == pytest.approx([0.4, 0.5, 0.6])
    assert read_curves(tmp_path / "none") == []


def test_axes_have_ticks_where_the_curve_is(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [{"step": i, "entropy": 2.0 + i, "reward": 0.5, "tokens_per_second": 10 * i} for i in (1, 2, 5)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reward, entropy, speed = read_curves(file)
    assert [curve.unit for curve in (reward, entropy, speed)] == ["", "nats", "1/s"]
    assert [(tick.value, tick.at) for tick in entropy.up] == [(3.0, 108.0), (5.0, 58.0), (7.0, 8.0)]
    assert [(tick.value, tick.at) for tick in entropy.across] == [(1, 58.0), (5, 308.0)]
    assert entropy.path == "M58.0 108.0L120.5 83.0L308.0 8.0"
    assert [tick.value for tick in reward.up] == [0.5]


def test_runs_that_differ_in_the_seed_are_drawn_as_their_mean_with_students_interval(tmp_path):
    """At the second step the values are 1, 2 and 6: mean 3, half width 4.303 · √7 / √3."""
    files = {}
    for seed, values in ((1, (0.0, 1.0)), (2, (0.0, 2.0)), (3, (0.0, 6.0))):
        name = f"trained@lr=1,seed={seed}"
        files[name] = tmp_path / f"{seed}.jsonl"
        lines = [{"step": 10 * i, "eval_return": value, f"only_{seed}": value} for i, value in enumerate(values)]
        files[name].write_text("".join(json.dumps(line) + "\n" for line in lines))
    files["other"] = files["trained@lr=1,seed=1"]
    charts = draw_charts(files)
    assert list(charts) == ["trained@lr=1,seed=*", "other"]
    (band,) = charts["trained@lr=1,seed=*"]
    half = 4.302652729 * (7 / 3) ** 0.5
    assert (band.name, band.first, band.last) == ("eval_return", 0.0, 3.0)
    assert [tick.value for tick in band.up] == pytest.approx([3 - half, 3.0, 3 + half], rel=1e-6)
    assert band.band.startswith("M58.0 ")
    assert band.band.endswith("Z")
    assert band.band.count("L") == 3
    assert [curve.band for curve in charts["other"]] == ["", ""]
