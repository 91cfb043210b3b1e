"""SWE-rebench: commits whose tests fail before and pass after are tasks; a cut-off divides old from fresh ones.

Commits are those of the recipe or written by hand; the recipes of the clerk are dictated. Not shown: that an agent
becomes better, which is measured.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.data.rows import read_rows, write_rows
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from schemas.recipe.load import load_recipe
from schemas.use import ProblemsUse
from tasks.context import Context

PATH = Path(__file__).parents[2] / "recipes" / "papers" / "swe-rebench.yaml"
STAGES = load_recipe(PATH).stages
MINED = STAGES["mined"].problems[0]
RIGHT, WRONG, WORSE = (f"def add2(n): return n {sign} 2\n" for sign in "+-*")
OTHER, BROKEN = "def mul3(n): return n * 3\n", "def mul3(n): return n + 3\n"
KINDS = {
    "fails, then passes": (WRONG + OTHER, RIGHT + OTHER),
    "passes only": (RIGHT + OTHER, RIGHT.replace("n", "n", 1) + "# said better\n" + OTHER),
    "fails only": (WRONG + OTHER, WORSE + OTHER),
    "breaks another": (WRONG + OTHER, RIGHT + BROKEN),
}


def make_task(before, after, number=0, **more):
    about = {
        "files": {"ops.py": before},
        "gold": {"ops.py": after},
        "tests": {"ops.add2(5)": 7, "ops.mul3(5)": 15},
        "date": "2025-01-01",
        **more,
    }
    prompt = [{"role": "user", "content": f"issue {number}"}]
    return {"id": str(number), "prompt": prompt, "answer": None, "family": "", "metadata": json.dumps(about)}


def keep(stage, rows):
    """Return the rows that the filters of a stage keep."""
    filters = [bind(use) for use in stage.filters]
    return [row for row in rows if all(one(row) for one in filters)]


def choose(stage, rows):
    """Return ids and dates of what a stage of the recipe with only a date keeps."""
    assert [use.use for use in stage.filters] == ["dated"]
    return {row["id"]: json.loads(row["metadata"])["date"] for row in keep(stage, rows)}


def set_up(tmp_path, tasks, candidates, labels=()):
    """Return the tasks that the recipe's stage `ready` makes of candidates by id, and its metrics."""
    stage, inputs = STAGES["ready"], {}
    for name, kind, rows in (
        ("tasks", "prompts", tasks),
        ("recipes", "chat", candidates),
        ("labels", "chat", list(labels)),
    ):
        inputs[name] = tmp_path / name
        inputs[name].mkdir()
        write_rows(inputs[name], kind, rows)
    assert set(stage.inputs) == set(inputs)
    context = Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0)
    metrics = bind(stage.function)(context)
    return read_rows(context.output("tasks"), "prompts"), metrics


def say(task, text):
    return task | {"completion": [{"role": "assistant", "content": text}]}


@pytest.mark.parametrize(("strict", "kept"), [(True, ["0"]), (False, ["0", "3"])])
def test_a_task_is_admitted_if_a_test_fails_before_and_passes_after(strict, kept):
    """Whether a newly broken test rejects a task is a setting; the recipe's is that it does."""
    tasks = [make_task(*pair, number) for number, pair in enumerate(KINDS.values())]
    stage = STAGES["valid"] if strict else load_recipe(PATH, overrides=["vars.strict=false"]).stages["valid"]
    assert [row["id"] for row in keep(stage, tasks)] == kept


def test_only_commits_of_the_recipe_that_correct_a_line_are_valid():
    use = ProblemsUse.model_validate({"use": MINED.use, **MINED.options, "size": 9, "installed": True})
    rows = bind(use)()
    assert {row["family"] for row in rows} == {"commit_fix", "commit_rename", "commit_break", "commit_wrong"}
    assert {row["family"] for row in keep(STAGES["valid"], rows)} == {"commit_fix"}


def test_a_vague_issue_is_left_out():
    pair = KINDS["fails, then passes"]
    tasks = [make_task(*pair, 0, quality="vague"), make_task(*pair, 1, quality="clear"), make_task(*pair, 2)]
    assert [row["id"] for row in keep(STAGES["valid"], tasks)] == ["1", "2"]


def test_the_cut_off_divides_tasks_and_moving_it_moves_those_between():
    rows = bind(MINED)()
    known, fresh = (choose(STAGES[name], rows) for name in ("known", "fresh"))
    assert all(day < "2025-01-01" for day in known.values())
    assert all(day >= "2025-01-01" for day in fresh.values())
    assert known.keys() | fresh.keys() == {row["id"] for row in rows}
    assert not known.keys() & fresh.keys()
    commits = {row["id"]: (m["repo"], m["commit"]) for row in rows for m in [json.loads(row["metadata"])]}
    assert not {commits[name] for name in known} & {commits[name] for name in fresh}
    later = load_recipe(PATH, overrides=["vars.cutoff='2025-03-01'"]).stages
    moved = choose(later["known"], rows).keys() - known.keys()
    assert moved == {name for name, day in fresh.items() if day < "2025-03-01"}
    assert fresh.keys() - choose(later["fresh"], rows).keys() == moved
    assert 0 < len(moved) < len(fresh)
    assert choose(STAGES["loose"], rows) == known


def test_the_day_of_the_cut_off_is_fresh():
    assert choose(STAGES["fresh"], [make_task("", "")]) == {"0": "2025-01-01"}
    assert choose(STAGES["known"], [make_task("", "")]) == {}


def test_an_install_recipe_that_fails_is_followed_by_the_next(tmp_path):
    before, after = (f"import tens\n{text}" for text in KINDS["breaks another"])
    packages = {"tens": {"tens.py": "TEN = 10\n"}}
    laid = {"files": {"lib/ops.py": before}, "gold": {"lib/ops.py": after}, "packages": packages}
    tasks = [make_task("", "", number, **laid) for number in range(3)]
    said = [
        *(say(tasks[0], text) for text in ("path src", "pip install .", "path lib; with tens", "path lib")),
        say(tasks[1], "path lib"),
        say(tasks[2], "path lib; with tens"),
    ]
    made, metrics = set_up(tmp_path, tasks, said, [say(tasks[0], "vague"), say(tasks[2], "clear")])
    about = {row["id"]: json.loads(row["metadata"]) for row in made}
    assert {name: one["install"] for name, one in about.items()} == dict.fromkeys("02", "path lib; with tens")
    # Three candidates of the first task; that of the second and all fallbacks in vain; one of the third.
    fallbacks = len(STAGES["ready"].function.options["fallbacks"])
    assert metrics == {"tasks": 3, "installed": 2, "tried": 3 + (1 + fallbacks) + 1}
    assert [one["quality"] for one in about.values()] == ["vague", "clear"]
    # The test that the commit breaks does not count, where such tasks are admitted.
    assert about["0"]["judged"] == ["ops.add2(5)"]
    for more in ([], [f"edit lib/ops.py 3 {BROKEN}"], [f"edit lib/ops.py 2 {WRONG}"]):
        episode = build_environment(STAGES["trained"].env, {}).begin(made[0], 0)
        for action in (f"edit lib/ops.py 2 {RIGHT}", *more):
            episode.step(action.rstrip())
        assert episode.step("submit").reward == float(WRONG not in "".join(more))


def test_the_same_commits_ask_for_recipes_labels_and_repairs():
    rows = [bind(STAGES[name].problems[0])() for name in ("mined", "readmes", "questions")]
    assert len({tuple(row["id"] for row in of) for of in rows}) == 1
    texts = [of[0]["prompt"][0]["content"].split(" ")[0] for of in rows]
    assert texts[1:] == ["install", "label"]
    about = json.loads(rows[0][0]["metadata"])
    assert rows[0][0]["prompt"][0]["content"] == f"{about['repo']}: {about['issue']}"
    assert "install" not in about
    assert (STAGES["recipes"].model, STAGES["labels"].model) == ("clerk", "clerk")
    assert STAGES["recipes"].num_generations == 4
    teachers = {name: bind(STAGES[f"{name[:-1]}_lessons"].teacher) for name in ("recipes", "labels")}
    for name, of in (("recipes", rows[1]), ("labels", rows[2])):
        said = [teachers[name](row, np.random.default_rng(0)) for row in of[:9]]
        assert bind(STAGES[name].rewards[0]).ask(0, {"rows": of[:9], "completions": said}) == [1.0] * 9


def test_the_trainings_differ_in_the_check_alone():
    trained, unchecked = (STAGES[name].model_dump() for name in ("trained", "unchecked"))
    assert (trained.pop("prompts"), unchecked.pop("prompts")) == ("known.data", "loose.data")
    assert trained == unchecked
    assert (STAGES["known"].data, STAGES["fresh"].data, STAGES["loose"].data) == (
        "valid.data",
        "valid.data",
        "ready.tasks",
    )
    assert (STAGES["valid"].data, STAGES["report"].prompts) == ("ready.tasks", "fresh.data")
    assert STAGES["report"].env == STAGES["trained"].env
