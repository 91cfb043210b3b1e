"""Real runs that differ in one thing each: exactly that is named."""

import io
import json
import math
import sys

import pytest
from rich.console import Console

from flows.cli import main
from flows.history.diff import compare, compute_difference_interval, read_side
from flows.history.diff_view import render
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.runs.lookup import find_run
from lineage.artifacts.seal import write_seal
from lineage.artifacts.signature import write_signature
from lineage.artifacts.store import Store
from lineage.digests import content_digest, folder_digests
from lineage.layout import Layout
from lineage.tracing.ancestry import render as render_lineage
from lineage.tracing.ancestry import trace
from schemas.errors import PlanError
from tests.small_steps import TINY_DEFAULTS

LAB = '''
import json
from pathlib import Path

from diff_lab_rules import wanted
from learning.data.rows import write_rows
from tasks.context import Context


def rows(context: Context) -> dict[str, int]:
    """Chat rows of a text file, one question and answer per line."""
    lines = [line.split(" = ") for line in (context.input("words") / "words.txt").read_text().splitlines()]
    made = [
        {"id": q, "prompt": [{"role": "user", "content": q}], "completion": [{"role": "assistant", "content": a}],
         "answer": a, "family": "sums", "metadata": ""}
        for q, a in lines if wanted(q)
    ]
    write_rows(context.output("rows"), "chat", made)
    return {"rows": len(made)}


def other(context: Context) -> None:
    """Does not depend on anything."""
    (context.output("result") / "n.txt").write_text("1")


def fails(context: Context) -> None:
    """Never ends well."""
    raise RuntimeError("on purpose")
'''
RULES = '''
def wanted(question: str) -> bool:
    """Whether a question is of use."""
    return bool(question)
'''
WORDS = [f"{a} + {b} = {a + b}" for a in range(1, 5) for b in range(1, 5)] + ["9 + 9 = eighteen or so"]
RECIPE = f"""
name: small
seed: 3
{TINY_DEFAULTS}stages:
  base: {{kind: init, max_length: 32}}
  rows: {{kind: python, function: "diff_lab:rows", inputs: {{words: "path:words"}}, produces: {{rows: chat}}}}
  clean: {{kind: curate, data: rows, filters: [{{use: words, max_words: 2}}]}}
  tuned: {{kind: sft, model: base, data: clean, max_steps: 2, learning_rate: 1e-3, max_length: 32}}
  other: {{kind: python, function: "diff_lab:other"}}
"""


class Lab:
    """A folder of a user with a recipe that was run."""

    def __init__(self, folder):
        self.folder, self.layout = folder, Layout(folder)
        self.write("diff_lab.py", LAB)
        self.write("diff_lab_rules.py", RULES)
        self.write("small.yaml", RECIPE)
        self.write("words/words.txt", "\n".join(WORDS))

    def write(self, name, text):
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)

    def run(self, *overrides):
        for name in [m for m in sys.modules if m.startswith("diff_lab")]:
            del sys.modules[name]
        plan = plan_recipe(self.folder / "small.yaml", self.layout, overrides=overrides)
        outcome = run_plan(plan, self.layout, executor="inprocess", prefect=False)
        assert outcome.exit_code == 0, [(s.step, s.state, s.reason) for s in outcome.states.values()]
        return outcome.run


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    made = Lab(tmp_path_factory.mktemp("diff"))
    made.first = made.run()
    return made


def named(difference):
    """What a difference names, without the figures that every training changes."""
    return {
        "recipe": [(c.what, c.before, c.after) for c in difference.recipe],
        "data": [(c.step, c.port or c.output) for c in difference.data],
        "code": [(c.what, c.steps) for c in difference.code],
        "environment": [c.what for c in difference.environment],
    }


NOTHING = {"recipe": [], "data": [], "code": [], "environment": []}


def test_a_run_and_its_repetition_do_not_differ(lab):
    difference = compare(lab.first, lab.run(), lab.layout)
    assert difference.is_empty
    assert set(difference.steps.same) == {"base", "rows", "clean", "tuned", "other"}
    assert difference.cost["seconds"][1] == 0.0
    assert difference.cost["saved_seconds"][1] == pytest.approx(difference.cost["seconds"][0])


def test_one_learning_rate(lab):
    difference = compare(lab.first, lab.run("stages.tuned.learning_rate=2e-3"), lab.layout)
    assert named(difference) == NOTHING | {"recipe": [("stages.tuned.learning_rate", 1e-3, 2e-3)]}
    assert (difference.steps.changed, set(difference.steps.same)) == (("tuned",), {"base", "rows", "clean", "other"})
    assert {change.step for change in difference.metrics} == {"tuned"}


def test_one_row_of_data_and_which_artifacts_it_changed(lab):
    removed = "2 + 3"
    lab.write("words/words.txt", "\n".join(line for line in WORDS if not line.startswith(removed)))
    try:
        run = lab.run()
    finally:
        lab.write("words/words.txt", "\n".join(WORDS))
    difference = compare(lab.first, run, lab.layout)
    wanted = [("rows", "inputs.words"), ("rows", "rows"), ("clean", "data")]
    assert named(difference) == NOTHING | {"data": wanted}
    assert [change.rows for change in difference.data] == [None, (17, 16), (16, 15)]
    for change in difference.data[1:]:
        assert (change.added, change.removed, change.changed) == ((), (removed,), ())
    assert (set(difference.steps.changed), set(difference.steps.same)) == (
        {"rows", "clean", "tuned"},
        {"base", "other"},
    )
    before, after = (trace(lab.layout, name) for name in (lab.first, run))
    keys = [{n.record["step"]: n.record["key"] for n in side.up} for side in (before, after)]
    assert {step for step in keys[0] if keys[0][step] == keys[1][step]} == {"base", "other"}
    touched = {n.record["key"] for n in trace(lab.layout, removed).down if n.record["step"] == "tuned"}
    assert keys[0]["tuned"] in touched
    assert keys[1]["tuned"] not in touched


def test_one_row_that_says_something_else(lab):
    lab.write("words/words.txt", "\n".join(line.replace("2 + 3 = 5", "2 + 3 = 6") for line in WORDS))
    try:
        difference = compare(lab.first, lab.run(), lab.layout)
    finally:
        lab.write("words/words.txt", "\n".join(WORDS))
    assert [(c.added, c.removed, c.changed) for c in difference.data if c.output] == [((), (), ("2 + 3",))] * 2


def test_one_module_of_the_users_own(lab):
    lab.write("diff_lab_rules.py", RULES.replace("bool(question)", "len(question) > 0"))
    try:
        difference = compare(lab.first, lab.run(), lab.layout)
    finally:
        lab.write("diff_lab_rules.py", RULES)
    assert named(difference) == NOTHING | {"code": [("diff_lab_rules.py", ("rows",))]}
    assert difference.metrics == ()
    assert set(difference.steps.again) == {"rows", "clean", "tuned"}


def test_one_package(lab):
    run = lab.run("stages.tuned.seed=4")
    manifest = read_side(run, lab.layout).manifests["tuned"]
    folder = Store(lab.layout).folder(manifest)
    doctored = manifest.model_copy(update={"versions": manifest.versions | {"numpy": "0.1"}})
    (folder / "manifest.json").write_text(doctored.model_dump_json())
    write_seal(folder)
    write_signature(lab.layout, folder, doctored)
    difference = compare(lab.first, run, lab.layout)
    assert [(c.what, c.before, c.after, c.steps) for c in difference.environment] == [
        ("numpy", manifest.versions["numpy"], "0.1", ("tuned",))
    ]
    assert named(difference)["recipe"] == [("stages.tuned.seed", None, 4)]


def test_another_machine_and_commit_are_named(lab):
    run = lab.run("stages.tuned.seed=5")
    manifest = read_side(run, lab.layout).manifests["tuned"]
    folder = Store(lab.layout).folder(manifest)
    assert manifest.machine["cores"] > 0
    changed = {"commit": "0" * 40, "machine": manifest.machine | {"processor": "another"}}
    doctored = manifest.model_copy(update=changed)
    (folder / "manifest.json").write_text(doctored.model_dump_json())
    write_seal(folder)
    write_signature(lab.layout, folder, doctored)
    assert [c.what for c in compare(lab.first, run, lab.layout).environment] == ["commit", "processor"]


def test_steps_of_one_run_only_and_what_was_not_finished(lab):
    text = RECIPE.replace("  tuned:", "  other_tuned:").replace("diff_lab:other", "diff_lab:fails")
    lab.write("small.yaml", text)
    plan = plan_recipe(lab.folder / "small.yaml", lab.layout)
    lab.write("small.yaml", RECIPE)
    outcome = run_plan(plan, lab.layout, executor="inprocess", prefect=False)
    difference = compare(lab.first, outcome.run, lab.layout)
    assert (difference.steps.only_before, difference.steps.only_after) == (("tuned",), ("other_tuned",))
    assert (difference.steps.unfinished, set(difference.steps.same)) == (("other",), {"base", "rows", "clean"})
    assert {c.what for c in difference.recipe} == {"stages.other.function.use", "stages.tuned", "stages.other_tuned"}


def test_the_lineage_of_a_model_names_stages_digests_commit_and_filters(lab):
    up = {n.record["step"]: n.record for n in trace(lab.layout, lab.first).up}
    assert set(up) == {"base", "rows", "clean", "tuned", "other"}
    model = trace(lab.layout, up["tuned"]["key"])
    shown = Console(width=200, record=True, file=io.StringIO())
    shown.print(render_lineage(model))
    text = shown.export_text()
    assert {n.record["step"] for n in model.up} == {"tuned", "base", "rows", "clean"}
    source = lab.layout.root / "words"
    for word in (
        "path:words",
        content_digest(folder_digests(source))[:12],
        "quality: 1 rows dropped",
        "seed 3",
        *(o["digest"][:12] for step in ("tuned", "base", "rows", "clean") for o in up[step]["outputs"].values()),
        f"commit {up['tuned']['commit'][:12]}",
    ):
        assert word in text, text
    lost = trace(lab.layout, "9 + 9")
    filters = {key: f"{reason} {detail}" for key, reason, detail in lost.target.dropped}
    assert filters[up["clean"]["key"]] == "quality words {'max_words': 2, 'min_words': 1, 'part': 'written'}"
    assert {n.record["step"] for n in lost.down} == {"rows"}


def test_why_asks_about_the_latest_run(lab, capsys, monkeypatch):
    lab.run("stages.tuned.learning_rate=5e-3")
    monkeypatch.chdir(lab.folder)
    monkeypatch.setenv("POSTTRAIN_ROOT", str(lab.folder))

    def said(*words):
        monkeypatch.setattr(sys, "argv", ["posttrain", "why", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    assert said("tuned") == said("small.yaml", "tuned", "--set", "stages.tuned.learning_rate=5e-3")
    assert said("tuned")[1].startswith("tuned: HIT")
    assert "learning_rate: 0.005 → 0.25" in said("tuned", "--set", "stages.tuned.learning_rate=0.25")[1]
    assert said("nothing")[0] == 3
    assert "expected a recipe and a step" in said("a", "b", "c")[1]


def test_the_interval_of_a_difference():
    """Equal half-widths w on both sides give w * sqrt(2); the closed form of independent errors."""
    one, other = {"value": 0.5, "low": 0.4, "high": 0.6}, {"value": 0.7, "low": 0.6, "high": 0.8}
    low, high = compute_difference_interval(one, other)
    assert (low, high) == pytest.approx((0.2 - 0.1 * math.sqrt(2), 0.2 + 0.1 * math.sqrt(2)))
    skewed = compute_difference_interval(
        {"value": 0.0, "low": 0.0, "high": 0.3}, {"value": 0.4, "low": 0.3, "high": 0.5}
    )
    assert skewed == pytest.approx((0.4 - math.hypot(0.1, 0.3), 0.4 + 0.1))


def test_what_is_shown_and_the_names_of_runs(lab, capsys, monkeypatch):
    last = lab.run("stages.tuned.learning_rate=3e-3")
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render(compare(lab.first, last, lab.layout)))
    text = console.export_text()
    for word in ("stages.tuned.learning_rate", "0.001", "0.003", "loss"):
        assert word in text
    assert find_run("latest", lab.layout) == last
    assert find_run("latest~1", lab.layout) < last
    assert find_run(lab.first[:-1], lab.layout) == lab.first
    with pytest.raises(PlanError, match="no run `latest~99`"):
        find_run("latest~99", lab.layout)
    monkeypatch.setenv("POSTTRAIN_ROOT", str(lab.folder))
    monkeypatch.setattr(sys, "argv", ["posttrain", "diff", lab.first, "latest", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    output = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert (output["before"], output["after"]) == (lab.first, last)
    assert [change["what"] for change in output["recipe"]] == ["stages.tuned.learning_rate"]
