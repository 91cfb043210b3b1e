import pytest

from flows.planning.compile import compile_recipe
from flows.planning.lm_eval_check import find_shipped_folder, verify_lm_eval_tasks
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.recipe.load import load_recipe

RECIPE = """name: p
stages:
  base: {kind: init}
  report: {kind: evaluate, model: base, tasks: [{use: lm_eval, tasks: [%s], include_path: "path:tasks"}]}
"""
OWN = """
sums: {dataset_path: json, dataset_kwargs: {data_files: {test: sums.jsonl}}, doc_to_text: !function mine.text}
lost: {dataset_path: csv, dataset_kwargs: {data_files: [sums.jsonl, lost.csv]}}
remote: {dataset_path: json, dataset_kwargs: {data_files: "https://example.com/a.jsonl"}}
hub: {dataset_path: some-org/Some_Data, dataset_name: main}
cached: {dataset_path: some-org/Other_Data, dataset_name: main}
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """A checkout with task files, which the tests share."""
    root = tmp_path_factory.mktemp("harness")
    (root / "tasks").mkdir()
    (root / "tasks/sums.jsonl").touch()
    for line in OWN.strip().splitlines():
        name, _, settings = line.partition(": ")
        (root / f"tasks/{name}.yaml").write_text(f"task: {name}\n" + "\n".join(_split(settings)))
    (root / "tasks/several.yaml").write_text("group: several\ntask: [sums, {task: lost}]\n")
    (root / "tasks/child.yaml").write_text("include: lost.yaml\ntask: child\n")
    (root / "cache/some-org___other_data/main").mkdir(parents=True)
    return Layout(root)


def _split(settings):
    """Return the keys of a map on one line as lines of their own: tags are not allowed inside braces of one line."""
    depth, part = 0, ""
    for letter in settings[1:-1]:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += letter
    yield part.strip()


def verify(layout, monkeypatch, name):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(layout.root / "cache"))
    (layout.root / "recipe.yaml").write_text(RECIPE % name)
    verify_lm_eval_tasks(compile_recipe(load_recipe(layout.root / "recipe.yaml"), layout), layout)


@pytest.mark.parametrize("name", ["sums", "cached"])
def test_a_task_with_its_data_is_accepted(layout, monkeypatch, name):
    verify(layout, monkeypatch, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lost", "task `lost`: its data file lost.csv is not in `include_path`"),
        ("several", "task `lost`: its data file lost.csv"),
        ("child", "task `child`: its data file lost.csv"),
        ("remote", "task `remote`: its data file https://example.com/a.jsonl is not on this machine"),
        ("hub", r"task `hub`: its data set some-org/Some_Data is not in the local cache; fetch it first: .*'main'\)"),
    ],
)
def test_a_task_without_its_data_is_refused_before_the_run(layout, monkeypatch, name, message):
    with pytest.raises(PlanError, match=r"report: tasks\.0: " + message):
        verify(layout, monkeypatch, name)


def test_a_task_that_does_not_exist_and_a_missing_package_are_named(layout, monkeypatch):
    monkeypatch.setattr("flows.planning.lm_eval_check._list_shipped", lambda folder: {"gsm8k": folder})
    with pytest.raises(PlanError, match="lm-eval has no task `gsm8`; did you mean `gsm8k`"):
        verify(layout, monkeypatch, "gsm8")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"lm_eval is not installed: pip install 'posttrain\[evals\]'"):
        verify(layout, monkeypatch, "sums")


def test_the_tasks_of_lm_eval_are_known_with_their_data_sets():
    from flows.planning.lm_eval_check import read_task

    settings = read_task(find_shipped_folder() / "gsm8k/gsm8k.yaml")
    assert (settings["task"], settings["dataset_path"], settings["dataset_name"]) == ("gsm8k", "openai/gsm8k", "main")
