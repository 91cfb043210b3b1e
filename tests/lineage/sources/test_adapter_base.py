"""Adapters as peft writes them are inputs: their base is found, or the error says what to do."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model

from learning.models.policy import load_outline, load_policy, save_policy
from learning.models.reward_model import load_reward_model
from lineage.artifacts.contract import read_contract
from lineage.layout import Layout
from lineage.sources.resolve import check_source, find_source
from schemas.errors import PlanError, StepError
from tests.learning.models.test_adapters import IDS, shake

VARIANTS = {
    "lora": {"target_modules": ["q_proj", "down_proj"]},
    "rslora": {"target_modules": "all-linear", "use_rslora": True, "modules_to_save": ["norm"]},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "embedding": {"target_modules": ["embed_tokens", "v_proj"]},
    "head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}
QUIET = pytest.mark.filterwarnings("ignore")  # peft warns of tied weights and of the hub


def write_adapter(model, folder, name, **options):
    """Let peft write an adapter whose base is called `name`; return the logits of the adapted model."""
    task = "SEQ_CLS" if type(model).__name__.endswith("Classification") else "CAUSAL_LM"
    adapted = shake(get_peft_model(model, LoraConfig(r=4, lora_alpha=6, task_type=task, **options))).eval()
    adapted.save_pretrained(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": name}))
    with torch.no_grad():
        return adapted(IDS).logits


@pytest.fixture
def find(tmp_path):
    return lambda reference: find_source(reference, Layout(tmp_path / "checkout"), (tmp_path,))


@QUIET
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_adapter_of_peft_loads_to_equal_logits(tiny_policy, tiny_policy_folder, tmp_path, find, variant):
    logits = write_adapter(tiny_policy.model, tmp_path / "adapter", "policy", **VARIANTS[variant])
    source = find("path:adapter")
    policy = load_policy(source.folder)
    torch.testing.assert_close(policy.model(IDS).logits, logits, atol=1e-5, rtol=1e-5)
    save_policy(policy, tmp_path / "again")
    torch.testing.assert_close(load_policy(tmp_path / "again").model(IDS).logits, logits, atol=1e-5, rtol=1e-5)
    assert read_contract(source.folder) == read_contract(tiny_policy_folder)
    assert load_outline(source.folder).max_length == policy.max_length


@QUIET
def test_an_adapter_brings_its_own_tokenizer_and_both_digests_count(tiny_policy, tiny_policy_folder, tmp_path, find):
    folder = tmp_path / "adapter"
    write_adapter(tiny_policy.model, folder, str(tiny_policy_folder), **VARIANTS["lora"])
    first = find("path:adapter")
    assert find("path:adapter") == first
    tiny_policy.tokenizer.chat_template = "{{ messages }}!"
    tiny_policy.tokenizer.save_pretrained(folder)
    second = find("path:adapter")
    assert load_policy(second.folder).tokenizer.chat_template == "{{ messages }}!"
    assert load_policy(first.folder).tokenizer.chat_template != "{{ messages }}!"
    (tiny_policy_folder / "generation_config.json").write_text("{}")
    third = find("path:adapter")
    assert len({source.digest for source in (first, second, third)}) == 3


@QUIET
def test_a_link_or_the_hubs_cache_may_hold_the_base(tiny_policy, tiny_policy_folder, tmp_path, find, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "adapter"
    logits = write_adapter(tiny_policy.model, folder, "org/base", **VARIANTS["dora"])
    advice = (
        r"'org/base', is neither a folder here nor in the hub's local cache; fetch it: hf download org/base; or put"
    )
    with pytest.raises(PlanError, match=f"path:adapter: the base model of this adapter, {advice}"):
        find("path:adapter")
    commit = "0" * 40
    for name, content in (("base", tiny_policy_folder), ("adapter", folder)):
        repository = tmp_path / "hub" / f"models--org--{name}"
        shutil.copytree(content, repository / "snapshots" / commit)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
    for reference in ("path:adapter", "hub:org/adapter"):
        source = find(reference)
        torch.testing.assert_close(load_policy(source.folder).model(IDS).logits, logits, atol=1e-5, rtol=1e-5)
        check_source(reference, source, Layout(tmp_path / "checkout"))
    shutil.rmtree(tmp_path / "hub" / "models--org--base")
    (folder / "base").symlink_to(tiny_policy_folder)
    torch.testing.assert_close(load_policy(find("path:adapter").folder).model(IDS).logits, logits, atol=1e-5, rtol=1e-5)


@QUIET
def test_another_base_and_other_adapters_are_refused(tiny_policy, wide_policy, tmp_path, find):
    save_policy(wide_policy, tmp_path / "wide")
    write_adapter(tiny_policy.model, tmp_path / "adapter", "wide", **VARIANTS["lora"])
    with pytest.raises(StepError, match="its base is not the model that it was trained over"):
        load_policy(find("path:adapter").folder)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    for change, message in (
        ({"base_model_name_or_path": None}, r"names no base model \(`base_model_name_or_path`\); put the base model"),
        ({"base_model_name_or_path": "../../etc"}, "is neither a folder here nor"),
    ):
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(PlanError, match=message):
            find("path:adapter")
    for change, message in (
        ({"peft_type": "IA3"}, "an adapter of type IA3; only LoRA, rsLoRA and DoRA are inputs: merge it with peft"),
        ({"task_type": "SEQ_CLS"}, "an adapter for a reward model, where a language model is needed"),
        ({"layer_replication": [[0, 2]]}, "an adapter with `layer_replication`"),
    ):
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(StepError, match=message):
            load_policy(find("path:adapter").folder)


@QUIET
def test_an_adapter_of_a_reward_model_brings_its_head(tiny_policy_folder, tmp_path, find):
    """As TRL writes it: the base is a language model, which has no head of a classifier."""
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_policy_folder, num_labels=1)
    logits = write_adapter(model, tmp_path / "adapter", "policy", target_modules="all-linear", use_dora=True)
    judge = load_reward_model(find("path:adapter").folder)
    with torch.no_grad():
        ours = judge.rewards([IDS[0, :2].tolist()], [[IDS[0, 2:].tolist()]])
    torch.testing.assert_close(ours, logits[0], atol=1e-5, rtol=1e-5)
