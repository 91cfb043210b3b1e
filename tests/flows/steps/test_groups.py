"""Steps trained by groups of Ray workers, on real Ray with two cores: places, kills, and what comes out."""

import json
import os
import re
import shutil
import threading

import psutil
import pytest
from safetensors.torch import load_file

from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.steps import machine_limits
from flows.steps.machine_limits import check_machine, refuse_impossible
from flows.steps.ray_placement import Placement, find_bundle_indices, list_bundles
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import PlanError, RecipeError
from schemas.plan import Step
from schemas.resources import Resources

HEAD = """
name: groups
seed: 3
stages:
  base:
    kind: init
    config:
      {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 2, num_attention_heads: 2,
       num_key_value_heads: 2, head_dim: 8}
    max_length: 96
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 12, style: short}]
    teacher: answer
  prompts:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 4, style: short}]
"""
SFT = """
  taught:
    kind: sft
    model: base
    data: lessons
    max_steps: 3
    logging_steps: 1
    per_device_train_batch_size: 5
    max_length: 96
    resources: {train: {workers: 2, strategy: fsdp2}}
"""
RL = """
  better:
    kind: rl
    model: base
    prompts: prompts
    rewards: ["lab:short"]
    advantage: [center]
    ratio: token
    policy_loss: clipped
    loss_aggregation: sequence_mean
    generation_batch_size: 8
    num_generations: 4
    max_completion_length: 6
    max_steps: 4
    save_steps: 1
    logging_steps: 1
    learning_rate: 1e-3
    retries: 1
    resources: {train: {workers: 2}}
"""
LAB = """
import os, signal
from pathlib import Path

import psutil

MARK = Path(__file__).with_name("kill-at")

def short(completions, step):
    if MARK.is_file() and step == int(MARK.read_text()):
        MARK.unlink()
        step_of = os.getpgid(0)
        [other] = [p.pid for p in psutil.process_iter() if p.pid not in (step_of, os.getpid())
                   and p.status() != psutil.STATUS_ZOMBIE and os.getpgid(p.pid) == step_of]
        os.kill(other, signal.SIGKILL)
    return [-len(text) / 6 for text in completions]

def hang(completions):
    if Path(__file__).stem == f"lab_{os.getpid()}":
        return [0.0] * len(completions)  # called on two rows before the run, in the test's own process
    mine = [str(p.pid) for p in psutil.process_iter() if os.getpgid(p.pid) == os.getpgid(0)]
    told = Path(__file__).with_name("hanging")
    told.with_suffix(".new").write_text(" ".join(mine))
    told.with_suffix(".new").rename(told)
    signal.pause()
"""


@pytest.fixture
def place(tmp_path):
    """Makes checkouts; the second begins with what the first has made."""

    def make(name, text, like=None):
        root = tmp_path / name
        if like is not None:
            shutil.copytree(like.root / ".posttrain", root / ".posttrain")
        root.mkdir(exist_ok=True)
        module = f"lab_{os.getpid()}"
        (root / f"{module}.py").write_text(LAB)
        (root / "recipe.yaml").write_text(text.replace("lab:", f"{module}:"))
        return Layout(root), plan_recipe(root / "recipe.yaml", Layout(root))

    return make


def step(**resources):
    words = {"name": "a", "stage": "a", "kind": "sft", "settings": {}, "seed": 0, "outputs": {}, "code": {}}
    return Step.model_validate({**words, "key": "0", "identity": {}, "resources": resources})


def test_every_process_has_a_bundle_and_trainers_have_the_first():
    made = Resources.model_validate(
        {"num_cpus": 2, "train": {"workers": 2, "num_gpus": 1}, "rollout": {"workers": 3, "memory": "1GB"}}
    )
    assert list_bundles(made) == [{"CPU": 1, "GPU": 1}] * 2 + [{"CPU": 2}] + [{"CPU": 1, "memory": 1e9}] * 3
    assert [find_bundle_indices(made, name) for name in ("train", "own", "rollout", "reward")] == [
        [0, 1],
        [2],
        [3, 4, 5],
        [],
    ]
    assert (made.all_cpus, made.all_gpus) == (7, 2)
    waiting = Resources.model_validate({"train": {"workers": 2}})
    assert list_bundles(waiting) == [{"CPU": 1}] * 2
    assert find_bundle_indices(waiting, "own") == []


def test_what_nodes_can_never_hold_is_refused_when_planned():
    nodes = [{"CPU": 4, "GPU": 2, "memory": 8e9}, {"CPU": 4, "GPU": 0, "memory": 8e9}]
    refuse_impossible([step(num_cpus=3, train={"workers": 2, "num_gpus": 1})], nodes)
    with pytest.raises(PlanError, match="a: no node has CPU 5"):
        refuse_impossible([step(train={"workers": 2, "num_cpus": 5})], nodes)
    with pytest.raises(PlanError, match="its 3 processes need CPU 3, GPU 3 at once"):
        refuse_impossible([step(train={"workers": 3, "num_gpus": 1})], nodes)
    with pytest.raises(PlanError, match="its 3 processes need CPU 9 at once"):
        refuse_impossible([step(train={"workers": 3, "num_cpus": 3})], nodes)


def test_a_gpu_is_refused_where_no_driver_of_one_is_loaded(monkeypatch):
    """Before Ray starts, which alone counts GPUs; a cluster elsewhere has its own."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine_limits, "GPUS", ("dev/no_such_device*",))
    with pytest.raises(PlanError, match=r"a: no node has CPU 1, GPU 1 \(resources\)\n.*, no GPU; lower `resources`"):
        check_machine([step(num_gpus=1)])
    check_machine([step(num_cpus=1)])
    monkeypatch.setattr(machine_limits, "GPUS", ("dev/nul[l]",))
    check_machine([step(num_gpus=64)])
    monkeypatch.setattr(machine_limits, "GPUS", ())
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    check_machine([step(num_gpus=1)])


def test_roles_that_a_kind_does_not_have_are_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text(HEAD.replace("    emit: prompts", "    resources: {train: {workers: 2}}"))
    with pytest.raises(RecipeError, match="no role `train`"):
        plan_recipe(tmp_path / "recipe.yaml", Layout(tmp_path))


def test_two_workers_of_ray_train_make_the_model_of_one_and_leave_their_places_free(place, monkeypatch):
    """The same step, hence the same key: resources say where, not what."""
    one, plan = place("one", HEAD + SFT)
    assert run_plan(plan, one, executor="inprocess").exit_code == 0
    alone = made(one, "taught")
    two, again = place("two", HEAD + SFT, like=one)
    assert [s.key for s in again.steps] == [s.key for s in plan.steps]
    shutil.rmtree(two.artifact("sft", key_of(again, "taught")))
    freed = []

    def free(self):
        original(self)
        import ray

        freed.append((ray.cluster_resources()["CPU"], ray.available_resources().get("CPU"), groups_of(ray)))

    original = Placement.free
    monkeypatch.setattr(Placement, "free", free)
    outcome = run_plan(again, two, prefect=False)
    assert outcome.exit_code == 0, outcome.states["taught"].reason
    both = made(two, "taught")
    assert both["metrics"].pop("forward") == alone["metrics"].pop("forward")
    assert both["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)
    for name, tensor in alone["weights"].items():
        assert float((both["weights"][name] - tensor).abs().max()) < 2e-5
    [(held, available, groups)] = freed
    assert held == available
    assert set(groups) == {"REMOVED"}
    assert "Traceback" not in both["log"]
    assert not list(two.work(key_of(again, "taught")).parent.glob("*/rank-*"))


@pytest.mark.slow
def test_a_killed_worker_costs_a_retry_and_the_result_is_bit_identical(place):
    calm, plan = place("calm", HEAD + RL)
    assert run_plan(plan, calm, prefect=False).exit_code == 0
    disturbed, again = place("disturbed", HEAD + RL)
    (disturbed.root / "kill-at").write_text("2")
    outcome = run_plan(again, disturbed, prefect=False)
    assert outcome.exit_code == 0, outcome.states["better"].reason
    events = [json.loads(line) for line in (disturbed.run(outcome.run) / "events.jsonl").read_text().splitlines()]
    [retry] = [event for event in events if event["type"] == "retry"]
    assert re.search(r"train worker(s \[0, 1\]| 1) died \(killed", retry["reason"]), retry["reason"]
    assert not (disturbed.root / "kill-at").exists()
    undisturbed, continued = made(calm, "better"), made(disturbed, "better")
    assert continued["digests"]["model"] == undisturbed["digests"]["model"]
    assert continued["digests"]["trajectories"] == undisturbed["digests"]["trajectories"]


@pytest.mark.slow
def test_a_stopped_step_leaves_no_process_and_no_place(place, monkeypatch):
    layout, plan = place("stopped", HEAD + RL.replace("lab:short", "lab:hang").replace("retries: 1", "retries: 0"))
    stop, hanging = threading.Event(), layout.root / "hanging"

    def when_it_hangs():
        while not hanging.is_file() and not stop.wait(0.05):
            pass
        stop.set()

    watcher = threading.Thread(target=when_it_hangs)
    watcher.start()
    freed = []
    original = Placement.free
    monkeypatch.setattr(Placement, "free", lambda self: (original(self), freed.append(self._is_reserved())))
    try:
        outcome = run_plan(plan, layout, prefect=False, stop=stop)
    finally:
        stop.set()
        watcher.join()
    assert outcome.states["better"].state == "cancelled"
    assert freed == [False]
    pids = [int(pid) for pid in hanging.read_text().split()]
    assert len(pids) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)


def groups_of(ray):
    from ray.util import placement_group_table

    return [group["state"] for group in placement_group_table().values()]


def key_of(plan, name):
    return next(s.key for s in plan.steps if s.name == name)


def made(layout, name):
    """What a step has published."""
    store = Store(layout)
    manifest = next(m for m in store.manifests() if m.step == name)
    folder = store.folder(manifest)
    return {
        "folder": folder,
        "metrics": manifest.metrics,
        "digests": {output: output_record.digest for output, output_record in manifest.outputs.items()},
        "weights": load_file(folder / "outputs" / "model" / "model.safetensors"),
        "log": (folder / "step.log").read_text(),
    }


@pytest.mark.filterwarnings("ignore")
def test_the_first_cause_among_ranks_is_reported_and_silent_ranks_have_died(tmp_path):
    from flows.steps.ray_train_group import TrainingFailedError, _first_cause, _lost_another

    def fails(rank, time, lost, said):
        told = {"rank": rank, "time": time, "lost": lost, "message": said}
        (tmp_path / f"failed-a-{rank}").write_text(json.dumps(told))

    fails(0, 1.0, True, "Connection closed by peer")
    assert _first_cause(TrainingFailedError("x"), tmp_path, "a", 2).startswith("train worker 1 died")
    fails(2, 3.0, False, "no such reward")
    fails(1, 2.0, False, "no such file")
    assert _first_cause(TrainingFailedError("x"), tmp_path, "a", 3) == "no such file"
    assert _first_cause(TrainingFailedError("a\nlast"), tmp_path, "other", 2) == "its train workers failed: last"
    assert _lost_another(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error"))
    assert not _lost_another(ValueError("rows"))
