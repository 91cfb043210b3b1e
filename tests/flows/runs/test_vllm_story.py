"""The quickstart with both engines: equal accuracies, a small gap at every step.

Always its first RL stage, shorter and without the judge, by both engines from one cold start; all of it, twice, in the
long tail.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.artifacts.store import Store
from lineage.layout import Layout
from tests.flows.checkout import REPOSITORY

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
]
QUICKSTART = REPOSITORY / "recipes" / "quickstart.yaml"
BY_TORCH = [f"{key}.engine=torch" for key in ("defaults.rl", "stages.attempts", "stages.report")]
LEFT_OUT = ("attempts", "judge", "rl_2", "rl_2_rloo", "merged")
STEPS = 32
"""RL steps of each engine, fewer than those of the recipe."""


def first_half() -> dict:
    """The quickstart up to `rl_1`, rewarded by the answer alone; it and the report by the embedded engine, too."""
    recipe = yaml.safe_load(QUICKSTART.read_text())
    stages = {name: stage for name, stage in recipe["stages"].items() if name not in LEFT_OUT}
    models = {"cold_start": "cold_start", "by_torch": "rl_1_torch", "by_vllm": "rl_1"}
    report = {key: value for key, value in stages["report"].items() if key != "gate"}
    report |= {"models": models, "num_generations": 2}
    stages["cold_start"]["max_steps"] = 300
    stages["rl_1"] |= {
        "max_steps": STEPS,
        "rewards": ["answers.exact"],
        "logging_steps": 1,
        "watch": [{"metric": "logprob_gap", "max": 0.001}],
    }
    stages["rl_1_torch"] = {**stages["rl_1"], "engine": "torch", "watch": []}
    stages |= {"report": report, "report_torch": {**report, "engine": "torch"}}
    profile = recipe["profiles"]["vllm"]
    profile["stages"] = {name: changes for name, changes in profile["stages"].items() if name in stages}
    return {**recipe, "stages": stages, "promote": None, "profiles": {"vllm": profile}}


def finished(path: Path, root: Path, executor: str, overrides: list[str]):
    """Manifest and curve of every step of the quickstart's profile for vLLM."""
    layout = Layout(root)
    plan = plan_recipe(path, layout, profile="vllm", overrides=overrides)
    outcome = run_plan(plan, layout, executor=executor, prefect=False)
    assert outcome.exit_code == 0, {name: state.reason for name, state in outcome.states.items()}
    store = Store(layout)
    manifests = {step.name: store.find(step.kind, step.key) for step in plan.steps}
    return {name: (manifest, curve_of(store, manifest)) for name, manifest in manifests.items()}


def curve_of(store, manifest):
    file = store.folder(manifest) / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def table_of(manifest):
    """The report's lines over all problems, by model."""
    return {line["model"]: line for line in manifest.details["table"] if line["family"] == "all"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    root = tmp_path_factory.mktemp("both")
    (root / "quickstart.yaml").write_text(yaml.safe_dump(first_half(), sort_keys=False))
    return finished(root / "quickstart.yaml", root, "inprocess", [])


def test_the_difference_from_the_trainer_is_reported_at_every_step(ran):
    manifest, curve = ran["rl_1"]
    gaps = [point["logprob_gap"] for point in curve]
    assert len(gaps) == STEPS
    assert 0 < max(gaps) < 1e-4
    assert manifest.metrics["logprob_gap"] == gaps[-1]


def test_reinforcement_learning_goes_the_same_way(ran):
    """The same tokens are drawn as long as rounding leaves them alone, so even the curves agree."""
    by_torch, by_vllm = ([point["reward"] for point in ran[name][1]] for name in ("rl_1_torch", "rl_1"))
    assert by_vllm[:3] == pytest.approx(by_torch[:3], abs=0.02)
    assert by_vllm == pytest.approx(by_torch, abs=0.15)


def test_both_engines_reach_the_same_accuracy_and_see_the_same(ran):
    tables = [table_of(ran[name][0]) for name in ("report_torch", "report")]
    for model, line in tables[0].items():
        assert line["value"] == pytest.approx(tables[1][model]["value"], abs=0.01)
    by_torch, by_vllm, before = (tables[1][name] for name in ("by_torch", "by_vllm", "cold_start"))
    assert by_vllm["value"] == pytest.approx(by_torch["value"], abs=0.02)
    assert min(by_torch["low"], by_vllm["low"]) > before["high"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quickstart_ends_with_equal_results(tmp_path):
    reports = {
        name: table_of(finished(QUICKSTART, tmp_path / name, "ray", overrides)["report"][0])
        for name, overrides in (("vllm", []), ("torch", BY_TORCH))
    }
    for model in ("cold_start", "rl_1", "rl_2", "merged"):
        by_vllm, by_torch = reports["vllm"][model], reports["torch"][model]
        assert max(by_vllm["low"], by_torch["low"]) < min(by_vllm["high"], by_torch["high"]), model
    assert reports["vllm"]["merged"]["low"] > reports["vllm"]["cold_start"]["high"]
