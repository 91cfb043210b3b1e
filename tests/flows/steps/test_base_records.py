"""Artifacts of adapters refer to their base: it is stored once, found again, kept, pushed and compared."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from flows.serving.models import Chosen
from flows.serving.vllm import command
from flows.steps.base_records import record_bases
from flows.steps.step_inputs import ReceivedInput
from learning.models.policy import add_adapters, load_policy, read_dtype, save_policy, save_trained
from learning.models.reward_model import load_reward_model, make_reward_model
from lineage.artifacts.artifact_check import check_artifact
from lineage.artifacts.contract import read_contract
from lineage.artifacts.digest_cache import scan_folder
from lineage.digests import digest_of
from lineage.exchange.sharing import pull, push
from lineage.layout import Layout
from lineage.records import read_records
from lineage.retention.keep import add_ancestors
from lineage.sources.resolve import complete_adapter, find_source
from lineage.verification.verify import verify
from schemas.adapter_base import read_record
from schemas.errors import PlanError
from schemas.manifest import InputRecord, Manifest
from schemas.training import LoRA
from tests.learning.models.test_adapters import IDS, shake
from tests.lineage.conftest import Maker

QUIET = pytest.mark.filterwarnings("ignore")  # peft warns of tied weights

OPTIONS = LoRA(use_peft=True, lora_r=2)


class Steps:
    """Publishes steps that train adapters, as `run_step` does after their task."""

    def __init__(self, root):
        self.maker = Maker(root)
        self.layout, self.store = self.maker.layout, self.maker.store

    def make_base(self, folder):
        files = {"model": {p.name: p.read_bytes() for p in folder.iterdir()}}
        return self.maker.make("base", "init", files, {"model": "policy"})

    def receive(self, of, source=None):
        """The input that a step receives from another one, or from outside."""
        if source is None:
            folder = complete_adapter(self.folder(of), self.layout)
            record = InputRecord(
                port="model", step=of.step, key=of.key, output="model", type="policy", digest=of.outputs["model"].digest
            )
        else:
            resolved = find_source(source, self.layout, (self.layout.root,))
            folder, record = (
                resolved.folder,
                InputRecord(port="model", source=source, digest=resolved.digest, type="policy"),
            )
        return ReceivedInput(record, folder, scan_folder(folder, links=True), {}, links=True)

    def adapt(self, name, received, *, dtype="float32", judge=False, seed=1):
        """Publish an adapter over an input; return its manifest and logits of the policy that was trained."""
        key = digest_of({"made": name})
        spec = SimpleNamespace(
            layout=self.layout,
            work=self.layout.work(key),
            recipe="small",
            run="run-1",
            step=SimpleNamespace(name=name, key=key),
        )
        folder = spec.work / "tmp-x"
        (folder / "outputs/model").mkdir(parents=True)
        policy = load_policy(received.folder, dtype=dtype)
        head = make_reward_model(policy, None) if judge else None
        adapted = add_adapters(head.policy if head else policy, OPTIONS)
        shake(adapted.model, seed)
        with torch.no_grad():
            logits = adapted.model(IDS).logits
        if head:
            head.policy = adapted
            head.save(folder / "outputs/model", OPTIONS)
        else:
            save_trained(adapted, folder / "outputs/model", OPTIONS)
        inputs = record_bases(spec, folder, [received])
        outputs = self.store.describe(folder, {"model": "reward_model" if judge else "adapter"})
        facts = {"recipe": "small", "run": "run-1", "seed": 0, "started": "2026-01-01T00:00:09Z", "seconds": 1.0}
        made = Manifest(
            key=key, kind="sft", identity={"made": name}, step=name, inputs=tuple(inputs), outputs=outputs, **facts
        )
        return self.store.publish(folder, made), logits

    def folder(self, of):
        return self.store.output_folder(of.kind, of.key, "model")


@pytest.fixture
def steps(tmp_path):
    return Steps(tmp_path / "checkout")


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@QUIET
def test_an_adapter_refers_to_its_base_and_loads_with_transformers(steps, tiny_policy_folder, monkeypatch):
    base = steps.make_base(tiny_policy_folder)
    made, logits = steps.adapt("one", steps.receive(base))
    folder = steps.folder(made)
    assert not any(file.path.startswith("base/") for file in made.outputs["model"].files)
    record = read_record(folder)
    assert (record.kind, record.key, record.digest) == ("init", base.key, base.outputs["model"].digest)
    complete = complete_adapter(folder, steps.layout)
    close(load_policy(complete).model(IDS).logits, logits)
    assert (complete / "base/model.safetensors").samefile(steps.folder(base) / "model.safetensors")
    assert read_contract(complete) == read_contract(tiny_policy_folder)
    plain = AutoModelForCausalLM.from_pretrained(complete).eval()
    close(plain(IDS).logits, logits)
    # The artifact itself loads from the checkout, whose place it does not contain.
    monkeypatch.chdir(steps.layout.root)
    close(AutoModelForCausalLM.from_pretrained(folder).eval()(IDS).logits, logits)
    assert str(steps.layout.root) not in (folder / "adapter_config.json").read_text()


@QUIET
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_over_adapters_merge_when_they_are_loaded(steps, tiny_policy_folder, dtype, tmp_path):
    base = steps.make_base(tiny_policy_folder)
    one, _ = steps.adapt("one", steps.receive(base), dtype=dtype)
    below = complete_adapter(steps.folder(one), steps.layout)
    two, logits = steps.adapt("two", steps.receive(one), dtype=dtype, seed=2)
    complete = complete_adapter(steps.folder(two), steps.layout)
    if dtype == "float32":
        close(load_policy(complete).model(IDS).logits, logits)
    # As if the merged base had been saved in the precision of the training.
    save_policy(load_policy(below, dtype=dtype), tmp_path / "whole/base")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(steps.folder(two) / name, tmp_path / "whole" / name)
    for wanted in ("float32", "bfloat16"):
        ours, theirs = (load_policy(place, dtype=wanted).model for place in (complete, tmp_path / "whole"))
        weights = theirs.state_dict()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in ours.state_dict().items())
    assert read_dtype(complete) == dtype
    with pytest.raises(PlanError, match="adapters over another adapter; merge them first with `posttrain export`"):
        command(Chosen("two", complete, "", ""), port=1, dtype=None, max_slots=2, max_length=None)


@QUIET
def test_a_reward_model_refers_to_the_language_model_that_it_started_from(steps, tiny_policy_folder):
    base = steps.make_base(tiny_policy_folder)
    one, _ = steps.adapt("one", steps.receive(base))
    for received in (steps.receive(base), steps.receive(one)):
        judge, logits = steps.adapt(f"judge-{received.record.step}", received, judge=True)
        loaded = load_reward_model(complete_adapter(steps.folder(judge), steps.layout))
        close(loaded.policy.model(IDS).logits, logits)


@QUIET
def test_a_folder_from_outside_becomes_one_artifact_for_all_its_adapters(steps, tiny_policy_folder):
    place = steps.layout.root / "outside"
    shutil.copytree(tiny_policy_folder, place)
    (place / "optimizer.pt").write_bytes(b"x" * 100)
    first, logits = steps.adapt("one", steps.receive(None, "path:outside"))
    second, _ = steps.adapt("two", steps.receive(None, "path:outside"))
    shutil.rmtree(place)
    close(load_policy(complete_adapter(steps.folder(first), steps.layout)).model(IDS).logits, logits)
    sources = [m for m in steps.store.manifests() if m.kind == "source"]
    assert len(sources) == 1
    assert {first.inputs[0].key, second.inputs[0].key} == {sources[0].key}
    assert "optimizer.pt" not in {file.path for file in sources[0].outputs["model"].files}


@QUIET
def test_the_base_is_kept_pushed_and_compared_with_its_adapter(steps, tiny_policy_folder, tmp_path):
    shutil.copytree(tiny_policy_folder, steps.layout.root / "outside")
    made, logits = steps.adapt("one", steps.receive(None, "path:outside"))
    key = made.inputs[0].key
    assert key in add_ancestors(read_records(steps.layout), {made.key: "pinned"})
    remote = tmp_path / "remote"
    push(steps.layout, str(remote), made.key)
    there = Layout(tmp_path / "there")
    there.root.mkdir()
    pull(there, str(remote), made.key, trust=True)
    folder = there.artifact("sft", made.key) / "outputs/model"
    close(load_policy(complete_adapter(folder, there)).model(IDS).logits, logits)
    check_artifact(steps.layout, made)
    weights = steps.layout.artifact("source", key) / "outputs/model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(PlanError, match=f"source {key[:16]}, is missing or damaged here; fetch it"):
        complete_adapter(steps.folder(made), steps.layout)
    with pytest.raises(PlanError, match="is not what was published"):
        check_artifact(steps.layout, made)
    shutil.rmtree(weights.parents[2])
    missing = r"the base of its adapter, source .* is missing; fetch it: posttrain pull"
    with pytest.raises(PlanError, match=missing):
        check_artifact(steps.layout, made)
    assert any(re.search(missing, problem) for problem in verify(steps.layout).problems)


@QUIET
def test_a_base_of_the_hub_is_named_with_its_commit(steps, tiny_policy_folder, monkeypatch, tmp_path):
    commit = "c" * 40
    cache = tmp_path / "hub/models--org--name"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/main").write_text(commit)
    shutil.copytree(tiny_policy_folder, cache / "snapshots" / commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    made, logits = steps.adapt("one", steps.receive(None, "hub:org/name"))
    config = json.loads((steps.folder(made) / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/name", commit)
    (cache / "refs/main").write_text("d" * 40)  # the repository has moved on
    close(load_policy(complete_adapter(steps.folder(made), steps.layout)).model(IDS).logits, logits)
    shutil.rmtree(cache)
    with pytest.raises(PlanError, match=f"hf download org/name --revision {commit}"):
        complete_adapter(steps.folder(made), steps.layout)
