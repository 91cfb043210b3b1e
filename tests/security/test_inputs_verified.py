"""A step reads what its plan says or fails before its task begins; what changes while it runs is not published."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from flows.steps import step
from flows.steps import step_inputs as received
from flows.steps.step import run_step
from flows.steps.step_spec import MadeInput, StepSpec
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.resolve import check_source, find_source
from schemas.errors import PlanError, StepError
from schemas.plan import Step
from tests.security.store_lab import Lab, flipped, write_over

STEPS = '''
from pathlib import Path

def first(context):
    (context.output("result") / "n.txt").write_text("1" * 40)

def copies(context, *, port: str = "inputs.x", log: str, meddle: str = ""):
    """Says what it reads, after doing something else to a file."""
    import importlib

    with open(log, "a") as file:
        file.write("x")
    text = "".join(p.read_text() for p in sorted(context.input(port).rglob("*.txt")))
    (context.checkpoints / "state.txt").write_text("made of it")
    if meddle:
        module, _, name = meddle.partition(":")
        getattr(importlib.import_module(module), name)(context.input(port))
    (context.output("result") / "n.txt").write_text(text)
'''
INSIDE = """
name: damage
stages:
  first: {kind: python, function: "STEPS:first"}
  copies: {kind: python, function: {use: "STEPS:copies", log: "LOG"}, inputs: {x: first}}
"""
OUTSIDE = """
name: damage
stages:
  copies: {kind: python, function: {use: "STEPS:copies", log: "LOG"}, inputs: {x: "path:words"}}
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    def made(recipe):
        lab = Lab(tmp_path / "root")
        lab.write(recipe, STEPS)
        (lab.root / "words/sub").mkdir(parents=True)
        (lab.root / "words/a.txt").write_text("a" * 40)
        (lab.root / "words/sub/b.txt").write_text("b" * 40)
        monkeypatch.syspath_prepend(str(lab.root))
        return lab

    return made


def spec(lab, inputs):
    plan = lab.plan()
    return StepSpec(lab.root, "r", plan.recipe, (lab.root,), "1", plan.step("copies"), inputs)


def of_first(lab):
    made = lab.step("first")
    return {"inputs.x": MadeInput(made.kind, made.key, "result", "first")}


def began(lab):
    return lab.log.is_file()


@pytest.mark.parametrize("harm", ["flipped", "cut", "removed", "added", "link"])
def test_a_damaged_artifact_never_reaches_the_task(make, harm, tmp_path):
    lab = make(INSIDE)
    lab.run()
    lab.forget("copies")
    lab.log.unlink()
    path = lab.folder("first") / "outputs/result/n.txt"
    given = spec(lab, of_first(lab))
    {
        "flipped": lambda: write_over(path, flipped(path.read_bytes())),
        "cut": lambda: path.write_bytes(b"1"),
        "removed": path.unlink,
        "added": lambda: path.with_name("m.txt").write_text("2"),
        "link": lambda: (path.rename(tmp_path / "n.txt"), path.symlink_to(tmp_path / "n.txt")),
    }[harm]()
    with pytest.raises(StepError, match=r"copies: input inputs\.x: the artifact of first is damaged: outputs/result/"):
        run_step(given)
    assert not began(lab)


@pytest.mark.parametrize("harm", ["flipped", "cut", "removed", "added"])
def test_a_folder_that_is_not_the_planned_one_never_reaches_the_task(make, harm):
    lab = make(OUTSIDE)
    given = spec(lab, {})
    path = lab.root / "words/a.txt"
    {
        "flipped": lambda: write_over(path, flipped(path.read_bytes())),
        "cut": lambda: path.write_bytes(b"1"),
        "removed": path.unlink,
        "added": lambda: path.with_name("m.txt").write_text("2"),
    }[harm]()
    with pytest.raises(StepError, match="path:words changed since the plan was made"):
        run_step(given)
    assert not began(lab)


MEDDLERS = """
import os

def one(folder):
    return sorted(folder.rglob("*.txt"))[0]

def rewritten(folder):
    before = one(folder).stat()
    one(folder).write_text("z" * before.st_size)
    os.utime(one(folder), ns=(before.st_atime_ns, before.st_mtime_ns))

def put_back(folder):
    text = one(folder).read_text()
    one(folder).write_text("z" * len(text))
    one(folder).write_text(text)

def replaced(folder):
    path = one(folder)
    text = path.read_text()
    path.rename(folder.parent / "before")
    path.write_text(text)

def added(folder):
    (folder / "zz.txt").write_text("more")

def removed(folder):
    one(folder).unlink()

def linked(folder):
    os.link(one(folder), folder.parent / "hard")

def fails_after(folder):
    rewritten(folder)
    raise RuntimeError("the task failed as well")
"""
SAID = {
    "rewritten": "the content of .* differs",
    "put_back": "was written to",
    "replaced": "was written to",
    "added": r"zz\.txt was added",
    "removed": "was removed",
    "fails_after": "the content of .* differs",
}


@pytest.mark.parametrize("meddle", SAID)
@pytest.mark.parametrize("recipe", [INSIDE, OUTSIDE], ids=["artifact", "folder"])
def test_an_input_that_changes_while_the_step_runs_is_not_claimed(make, recipe, meddle):
    lab = make(recipe.replace('log: "LOG"', f'log: "LOG", meddle: "MEDDLE:{meddle}"'))
    (lab.root / "meddlers_of_inputs.py").write_text(MEDDLERS)
    text = (lab.root / "damage.yaml").read_text().replace("MEDDLE", "meddlers_of_inputs")
    (lab.root / "damage.yaml").write_text(text)
    if recipe is INSIDE:
        run_step(replace(spec(lab, {}), step=lab.step("first")))
    given = spec(lab, of_first(lab) if recipe is INSIDE else {})
    with pytest.raises(StepError, match=f"changed while the step read it: .*{SAID[meddle]}"):
        run_step(given)
    assert lab.found("copies") is None
    # What it had made so far rests on what it may have read.
    assert not (lab.layout.work(lab.step("copies").key) / "checkpoints").exists()


def test_a_hard_link_to_an_input_changes_nothing(make):
    lab = make(OUTSIDE.replace('log: "LOG"', 'log: "LOG", meddle: "meddlers_that_link:linked"'))
    (lab.root / "meddlers_that_link.py").write_text(MEDDLERS)
    run_step(spec(lab, {}))
    assert (lab.root / "hard").is_file()
    assert lab.found("copies") is not None


@pytest.mark.parametrize("change", ["settings", "seed", "identity", "code"])
def test_a_plan_that_was_changed_by_hand_is_refused(make, change):
    lab = make(OUTSIDE)
    given = spec(lab, {})
    planned = given.step.model_dump(mode="json")
    if change == "settings":
        planned["settings"]["function"]["port"] = "inputs.y"
    elif change == "seed":
        planned["seed"] += 1
    elif change == "identity":
        planned["identity"]["seed"] += 1
    else:
        planned["code"] = dict.fromkeys(planned["code"], "0" * 64)
    with pytest.raises(StepError, match="the plan was edited"):
        run_step(replace(given, step=Step.model_validate(planned)))
    assert not began(lab)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A model in the hub's cache: a small file by its git hash, a large one by its sha256."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    home = tmp_path / "hub/models--lab--m"
    snapshot = home / f"snapshots/{'3' * 40}"
    for folder in (home / "refs", home / "blobs", snapshot):
        folder.mkdir(parents=True)
    (home / "refs/main").write_text("3" * 40)
    config, weights = b'{"hidden_size": 8}', b"w" * 1000
    git = hashlib.sha1(b"blob %d\0" % len(config) + config, usedforsecurity=False).hexdigest()
    for name, content, blob in (("config.json", config, git), ("w.bin", weights, hashlib.sha256(weights).hexdigest())):
        (home / "blobs" / blob).write_bytes(content)
        (snapshot / name).symlink_to(os.path.relpath(home / "blobs" / blob, snapshot))
    return Layout(tmp_path / "state"), snapshot


@pytest.mark.parametrize("name", ["config.json", "w.bin"])
def test_a_file_of_the_hub_is_what_was_fetched(hub, name):
    layout, snapshot = hub
    source = find_source("hub:lab/m", layout, ())
    check_source("hub:lab/m", source, layout)
    blob = (snapshot / name).resolve()
    write_over(blob, flipped(blob.read_bytes()))
    with pytest.raises(PlanError, match=f"hub:lab/m: {name} is not the file that was fetched"):
        check_source("hub:lab/m", source, layout)


def test_the_checks_stand_where_every_executor_passes():
    """Ray's workers and the executor of one process both call `run_step`."""
    from flows.steps import in_process as inprocess
    from flows.steps import ray_worker_main as worker_main

    assert inprocess.run_step is run_step
    assert "from flows.steps.step import run_step" in Path(worker_main.__file__).read_text()
    assert step.find_inputs is received.find_inputs
    assert Store is received.Store
