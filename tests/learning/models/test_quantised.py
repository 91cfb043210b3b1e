"""Adapters over weights in 4 bits against adapters over plain layers with the same values."""

import json
import shutil

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from learning.generation.weights.protocol import collect_weights
from learning.models.adapters import attach_adapters
from learning.models.forwards import evaluation_mode, unwrap
from learning.models.packed import choose_forward, pack, packed_logprobs
from learning.models.policy import Policy, add_adapters, load_policy, load_trained_policy, save_policy, save_trained
from learning.models.quantised import plain_layer, quantise
from learning.models.reward_model import load_reward_model, make_reward_model
from learning.parallel.group import ALONE
from schemas.errors import StepError
from schemas.training import LoRA
from tests.conftest import small_policy
from tests.learning.models.test_adapters import IDS, shake
from tests.models.families import make_family

bitsandbytes = pytest.importorskip("bitsandbytes")

FOREST = pack([[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17]], [-1, 0, 0])
VARIANTS = {
    "nf4": {},
    "nested": {"use_bnb_nested_quant": True},
    "fp4": {"bnb_4bit_quant_type": "fp4"},
    "dora": {"use_dora": True, "use_rslora": True},
}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
NEGATIVE = (-1, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004)
POSITIVE = (0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1)
NF4 = torch.tensor([*NEGATIVE, *POSITIVE])
"""The values of a normally distributed weight, from the paper's appendix E."""


@pytest.fixture
def wide_folder(tmp_path):
    policy = small_policy(128, hidden_size=64, intermediate_size=128, num_attention_heads=4, head_dim=16)
    save_policy(policy, tmp_path / "policy")
    return tmp_path / "policy"


def options(**more):
    return LoRA(use_peft=True, load_in_4bit=True, **{"lora_r": 4, "lora_alpha": 6, **more})


def list_layers(model):
    return {name: m for name, m in unwrap(model).named_modules() if isinstance(m, bitsandbytes.nn.Linear4bit)}


def make_plain(model):
    """Return a copy of a quantised model with plain layers of the same values."""
    for name, layer in list_layers(model).items():
        model.set_submodule(name, plain_layer(layer))
    model.is_loaded_in_4bit = False
    return model


def make_pair(kind="qwen3", **more):
    """Return two adapted models with equal adapters: one over quantised layers, one over plain ones of their values."""
    chosen = options(**more)
    quantised, plain = (quantise(make_family(kind, **SIZES), chosen, "cpu") for _ in range(2))
    pair = []
    for model in (quantised, make_plain(plain)):
        torch.manual_seed(2)
        pair.append(shake(attach_adapters(model, chosen)))
    return pair


def differentiate(model):
    """Return the log-probabilities on a forest and the gradients of all that is trained."""
    lp_M = packed_logprobs(model, FOREST)[0]
    weight_M = torch.linspace(-1, 2, len(lp_M))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad((lp_M * weight_M).sum(), list(named.values()))
    return lp_M.detach(), dict(zip(named, grads, strict=True))


def compare(one, other, tolerance=1e-6):
    (lp, grads), (wanted_lp, wanted) = one, other
    torch.testing.assert_close(lp, wanted_lp, atol=tolerance, rtol=tolerance)
    assert grads.keys() == wanted.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted[name], atol=tolerance, rtol=tolerance)
    assert max(float(grad.abs().max()) for grad in wanted.values()) > 1e-2


def test_weights_are_the_nearest_of_sixteen_values_times_the_largest_of_their_block():
    model = make_family("qwen3", **SIZES)
    weight = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    quantise(model, options(), "cpu")
    blocks = weight.reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = ((blocks / scale)[..., None] - NF4).abs().argmin(-1)
    wanted = (NF4[nearest] * scale).reshape(weight.shape)
    values = plain_layer(model.model.layers[0].mlp.up_proj).weight
    torch.testing.assert_close(values, wanted, atol=1e-6, rtol=1e-6)
    assert not torch.equal(values, weight)


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_are_those_over_plain_layers_with_the_same_values(variant):
    quantised, plain = make_pair(**VARIANTS[variant])
    assert choose_forward(unwrap(quantised)).body == "forest"
    assert list_layers(quantised)
    assert not list_layers(plain)
    compare(differentiate(quantised), differentiate(plain))


def test_an_evaluation_between_steps_does_not_change_gradients():
    """Without the switch, bitsandbytes repacks weights in such a pass on some CPUs, and gradients are wrong."""
    quantised, plain = make_pair()
    before = differentiate(quantised)
    assert all(layer.support_avx512bf16_for_cpu is False for layer in list_layers(quantised).values())
    with torch.no_grad(), evaluation_mode(quantised):
        packed_logprobs(quantised, FOREST)
        quantised(IDS)
    after = differentiate(quantised)
    compare(after, before, tolerance=0)
    compare(after, differentiate(plain))


def test_what_computes_other_gradients_after_an_evaluation_is_refused(monkeypatch):
    layer = bitsandbytes.nn.Linear4bit
    own = layer.forward

    def forward(self, rows):
        self.repacked = getattr(self, "repacked", False) or not rows.requires_grad
        return own(self, rows) * (1.5 if self.repacked and rows.requires_grad else 1)

    monkeypatch.setattr(layer, "forward", forward)
    with pytest.raises(StepError, match=r"bitsandbytes computes other products for .*q_proj"):
        quantise(make_family("qwen3", **SIZES), options(), "cpu")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("rwkv", "rwkv does not compute with quantised layers"), ("gpt2", "no linear layer of this model")],
)
def test_models_that_cannot_be_quantised_are_refused_by_name(kind, reason):
    with pytest.raises(StepError, match=reason):
        quantise(make_family(kind, **SIZES), options(), "cpu")


def test_layers_whose_rows_are_no_whole_blocks_keep_their_weights(wide_policy):
    """bitsandbytes 0.50.2 reads the scales of such layers wrongly on a CPU."""
    model = quantise(wide_policy.model, options(), "cpu")
    assert wide_policy.model.config.intermediate_size % 64
    assert {name.rpartition(".")[2] for name in list_layers(model)} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
    }


def test_wrong_scales_of_blocks_are_refused(monkeypatch):
    monkeypatch.setattr("learning.models.adapter_targets.BLOCK", 32)
    with pytest.raises(StepError, match=r"bitsandbytes stores other weights than those of .*down_proj"):
        quantise(make_family("qwen3", hidden_size=64, intermediate_size=96, head_dim=16), options(), "cpu")


def test_nested_scales_of_small_weights_beside_large_ones_are_not_wrong_ones():
    """Scales are quantised in groups, each with the precision of its largest: small blocks have a larger error."""
    model = make_family("qwen3", **SIZES)
    with torch.no_grad():
        for block in model.model.layers:
            block.mlp.up_proj.weight[::8] *= 40
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone().reshape(-1, 64)
    quantise(model, options(use_bnb_nested_quant=True), "cpu")
    error = (plain_layer(model.model.layers[0].mlp.up_proj).weight.reshape(-1, 64) - before).abs().amax(1)
    assert float((error / before.abs().amax(1)).max()) > 0.2
    assert float(error.max()) < 0.2 * float(before.abs().max())


@pytest.mark.parametrize("kind", ["gemma2", "lfm2"])
def test_windows_and_hybrids_compute_as_over_plain_layers(kind):
    quantised, plain = make_pair(kind)
    compare(differentiate(quantised), differentiate(plain), tolerance=1e-5)


def test_the_head_and_modules_that_are_trained_whole_keep_their_weights():
    model = quantise(make_family("qwen3", **SIZES), options(modules_to_save=["o_proj", "norm"]), "cpu")
    assert {name.rpartition(".")[2] for name in list_layers(model)} == {
        *("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert type(model.lm_head) is nn.Linear
    assert all(type(block.self_attn.o_proj) is nn.Linear for block in model.model.layers)


@pytest.mark.parametrize("variant", ["nf4", "dora"])
def test_engines_receive_the_weights_that_the_quantised_model_computes_with(variant):
    """A weight is what the layer makes of unit vectors; layers without adapters are converted back as well."""
    quantised, _ = make_pair(lora_target_modules=["q_proj", "down_proj"], **VARIANTS[variant])
    weights = collect_weights(quantised)
    engine = make_family("qwen3", **SIZES)
    assert weights.keys() == engine.state_dict().keys()
    engine.load_state_dict(weights)
    torch.testing.assert_close(engine(IDS).logits, quantised(IDS).logits, atol=2e-5, rtol=1e-5)


def train(folder, chosen):
    """Return a policy with weights in 4 bits and shaken adapters, from a folder."""
    policy = load_trained_policy(folder, chosen, device="cpu", dtype="float32", group=ALONE)
    adapted = add_adapters(policy, chosen)
    shake(adapted.model)
    return adapted


def test_a_saved_adapter_is_loaded_over_the_weights_that_it_was_trained_over(wide_folder, tmp_path):
    chosen = options(use_bnb_nested_quant=True, modules_to_save=["norm"])
    policy = train(wide_folder, chosen)
    logits = policy.model(IDS).logits.detach()
    (tmp_path / "adapter").mkdir()
    save_trained(policy, tmp_path / "adapter", chosen)
    record = json.loads((tmp_path / "adapter/base.json").read_text())
    assert record == {"bnb_4bit_quant_type": "nf4", "dtype": "float32", "use_bnb_nested_quant": True}
    merged = load_policy(tmp_path / "adapter").model
    torch.testing.assert_close(merged(IDS).logits, logits, atol=2e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")  # peft's and transformers' own
def test_peft_loads_a_saved_adapter_over_a_base_in_4_bits_and_over_a_full_one(wide_folder, tmp_path):
    chosen = options()
    policy = train(wide_folder, chosen)
    logits = policy.model(IDS).logits.detach()
    (tmp_path / "adapter").mkdir()
    save_trained(policy, tmp_path / "adapter", chosen)
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    shutil.copytree(wide_folder, tmp_path / "base")
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "base", quantization_config=how, device_map={"": "cpu"})
    with torch.enable_grad():  # without it bitsandbytes would repack the weights
        theirs = PeftModel.from_pretrained(small, tmp_path / "adapter").train()(IDS).logits
    torch.testing.assert_close(theirs, logits, atol=2e-5, rtol=1e-5)
    full = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    assert full(IDS).logits.shape == logits.shape
    adapters = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    for name, tensor in full.named_parameters():
        if name in adapters:
            assert torch.equal(tensor, adapters[name]), name


def test_a_reward_model_over_weights_in_4_bits_is_saved_and_loaded(wide_folder, tmp_path):
    chosen = options()
    start = load_policy(wide_folder)
    judge = make_reward_model(start, None)
    judge.policy = Policy(
        quantise(judge.policy.model, chosen, "cpu"), start.tokenizer, start.max_length, folder=wide_folder
    )
    judge.policy = add_adapters(judge.policy, chosen)
    shake(judge.policy.model)
    given = ([[5, 6, 7]], [[[8, 9], [10, 11, 12]]])
    rewards = judge.rewards(*given).detach()
    (tmp_path / "judge").mkdir()
    judge.save(tmp_path / "judge", chosen)
    loaded = load_reward_model(tmp_path / "judge")
    torch.testing.assert_close(loaded.rewards(*given), rewards, atol=2e-5, rtol=1e-5)
    assert float(rewards.abs().max()) > 1e-3


def test_without_bitsandbytes_the_step_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(StepError, match=r"pip install 'posttrain\[bitsandbytes\]'"):
        quantise(make_family("qwen3", **SIZES), options(), "cpu")
