"""Adapters against closed forms and against peft: forward, gradients, merging, files."""

import json
import math

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch.nn.functional import linear

from learning.generation.weights.protocol import collect_weights
from learning.models.adapters import attach_adapters, merge_weights, remove_adapters
from learning.models.packed import pack, packed_logprobs
from learning.models.policy import Policy, add_adapters, load_policy, save_trained
from schemas.errors import StepError
from schemas.training import LoRA
from tests.conftest import small_policy
from tests.models.families import make_family

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
VARIANTS = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "rsdora": {"use_dora": True, "use_rslora": True},
}


def options(**more):
    return LoRA(use_peft=True, **{"lora_r": 4, "lora_alpha": 6, **more})


def shake(model, seed=1):
    """Move everything that is trained away from where it starts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def new_policy(**shape):
    return small_policy(
        128, **{"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 8, **shape}
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_adapted_layer_is_the_closed_form_with_its_gradients(tiny_policy, variant):
    model = shake(attach_adapters(tiny_policy.model, options(**VARIANTS[variant])))
    layer = model.get_base_model().model.layers[1].mlp.down_proj
    a, b, w = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.base_layer.weight
    scale = 6 / math.sqrt(4) if "rs" in variant else 6 / 4
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))

    if "dora" in variant:
        magnitude = layer.lora_magnitude_vector["default"].weight
        whole = w + scale * b @ a
        length = whole.norm(dim=1).detach()  # DoRA's paper, section 4.3: no gradient through the norm
        wanted = linear(x, (magnitude / length)[:, None] * whole)
        trained = (a, b, magnitude)
    else:
        wanted, trained = linear(x, w) + scale * linear(linear(x, a), b), (a, b)
    torch.testing.assert_close(layer(x), wanted, atol=1e-6, rtol=1e-6)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3))
    ours, closed = (torch.autograd.grad((out * weight).sum(), trained) for out in (layer(x), wanted))
    for one, other in zip(ours, closed, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
        assert float(one.abs().max()) > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_packed_forward_equals_pefts_own(tiny_policy, variant):
    own = options(**VARIANTS[variant], modules_to_save=["norm"])
    ours = shake(attach_adapters(tiny_policy.model, own))
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=4,
        lora_alpha=6,
        target_modules="all-linear",
        modules_to_save=["model.norm"],
        **VARIANTS[variant],
    )
    theirs = shake(get_peft_model(new_policy().model, config)).eval()
    logits = theirs(IDS).logits[0, :-1]
    wanted = logits.log_softmax(-1).gather(1, IDS[0, 1:, None])[:, 0]
    got, _ = packed_logprobs(ours, pack([IDS[0, :3].tolist(), IDS[0, 3:].tolist()], [-1, 0]))
    torch.testing.assert_close(got[1:], wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours(IDS).logits, theirs(IDS).logits, atol=1e-6, rtol=0)
    grads = []
    for model, loss in ((ours, got[1:].sum()), (theirs, wanted.sum())):
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        grads.append(dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)))
    assert grads[0].keys() == grads[1].keys()
    assert any("model.norm" in name for name in grads[0])
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_merged_weights_compute_what_the_adapters_do(variant, kind):
    plain, model = make_family(kind), make_family(kind)
    saved = {"qwen2": ["norm", "lm_head"], "gpt2": ["ln_f"]}[kind]
    adapted = shake(attach_adapters(model, options(**VARIANTS[variant], modules_to_save=saved)))
    before = adapted(IDS).logits
    merged = merge_weights(adapted)
    assert merged.keys() == plain.state_dict().keys()
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(IDS).logits, before, atol=2e-5, rtol=1e-5)
    assert torch.equal(adapted(IDS).logits, before)
    original = make_family(kind).state_dict()
    removed = remove_adapters(adapted).state_dict()
    assert removed.keys() == original.keys()
    assert all(torch.equal(removed[name], tensor) for name, tensor in original.items())


@pytest.mark.parametrize("saved", [[], ["norm", "q_norm"], ["embed_tokens"], ["lm_head"]], ids=str)
@pytest.mark.parametrize("variant", ["rslora", "dora"])
def test_peft_reads_what_is_written_and_the_base_stays(tmp_path, variant, saved):
    """The tiny policy has a tied head: saving either end trains both."""
    policy = add_adapters(new_policy(), options(**VARIANTS[variant], modules_to_save=saved))
    shake(policy.model)
    logits = policy.model(IDS).logits
    assert not torch.allclose(logits, new_policy().model(IDS).logits, atol=1e-2)
    save_trained(policy, tmp_path, LoRA(use_peft=True))
    base, start = load_policy(tmp_path / "base").model, new_policy().model
    assert all(torch.equal(p, dict(base.named_parameters())[n]) for n, p in start.named_parameters())
    theirs = PeftModel.from_pretrained(base, tmp_path).eval()
    torch.testing.assert_close(theirs(IDS).logits, logits, atol=1e-6, rtol=0)
    folded = load_policy(tmp_path).model
    torch.testing.assert_close(folded(IDS).logits, logits, atol=1e-5, rtol=1e-5)
    tied = folded.get_input_embeddings().weight is folded.get_output_embeddings().weight
    assert tied
    names = {name for name in load_file(tmp_path / "adapter_model.safetensors") if "lora_" not in name}
    if saved == ["norm", "q_norm"]:
        ends = {name.removeprefix("base_model.model.model.") for name in names}
        assert ends == {"norm.weight", "layers.0.self_attn.q_norm.weight", "layers.1.self_attn.q_norm.weight"}


def test_names_and_expressions_pick_exactly_their_modules(tiny_policy):
    def adapted(**more):
        model = attach_adapters(new_policy().model, options(**more))
        return {
            name.removeprefix("base_model.model.model.").removesuffix(".lora_A.default.weight")
            for name, _ in model.named_parameters()
            if "lora_A" in name
        }

    assert adapted(lora_target_modules=["q_proj", "layers.1.mlp.up_proj"]) == {
        "layers.0.self_attn.q_proj",
        "layers.1.self_attn.q_proj",
        "layers.1.mlp.up_proj",
    }
    assert adapted(lora_target_modules=r"model\.layers\.1\..*(k|v)_proj") == {
        "layers.1.self_attn.k_proj",
        "layers.1.self_attn.v_proj",
    }
    attention = {f"self_attn.{side}_proj" for side in "qkvo"}
    parts = attention | {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    everywhere = {f"layers.{i}.{part}" for i in (0, 1) for part in parts}
    assert adapted() == everywhere
    left = everywhere - {"layers.0.mlp.up_proj"}
    assert adapted(modules_to_save=["layers.0.mlp.up_proj"]) == left


LINEARS = r"its linear modules are down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj \(in full"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"lora_target_modules": "q_proj"}, f"lora_target_modules: the regular expression matches no .*{LINEARS}"),
        ({"lora_target_modules": ["q_proj", "v_prj"]}, f"lora_target_modules: no module `v_prj` .*{LINEARS}"),
        ({"lora_target_modules": r".*\.mlp"}, r"`model\.layers\.0\.mlp` is no linear module but Qwen3MLP; its linear"),
        (
            {"lora_target_modules": ["embed_tokens"]},
            r"`model\.embed_tokens` shares its weights with `lm_head`.*instead",
        ),
        (
            {"modules_to_save": ["head"]},
            "modules_to_save: no module `head` in this model; modules with weights: .*norm",
        ),
        ({"modules_to_save": ["mlp"]}, "modules_to_save: `model.layers.0.mlp` consists of other .*gate_proj, up_proj"),
        (
            {"modules_to_save": ["up_proj"], "lora_target_modules": ["up_proj", "q_proj"]},
            "`model.layers.0.mlp.up_proj` is trained whole by `modules_to_save`",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_names_that_fit_nothing_are_refused_with_what_there_is(tiny_policy, more, message):
    with pytest.raises(StepError, match=message):
        attach_adapters(tiny_policy.model, options(**more))


def test_what_is_trained_are_the_adapters_and_what_is_saved(tiny_policy):
    model = attach_adapters(tiny_policy.model, options(modules_to_save=["norm"], use_dora=True))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    ends = {name.partition(".lora_")[1] or name for name in trained}
    assert ends == {".lora_", "base_model.model.model.norm.modules_to_save.default.weight"}
    assert any("lora_magnitude_vector" in name for name in trained)


def test_weights_for_engines_hold_what_dora_and_saved_modules_change(tiny_policy, tmp_path):
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 128)
    policy = add_adapters(policy, options(use_dora=True, modules_to_save=["embed_tokens"]))
    shake(policy.model)
    sent = {name: tensor.clone() for name, tensor in collect_weights(policy.model).items()}
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])
    save_trained(policy, tmp_path, LoRA(use_peft=True))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["use_dora"] is True
    folded = load_policy(tmp_path).model.state_dict()
    assert sent.keys() == folded.keys()
    assert all(torch.equal(sent[name], folded[name]) for name in sent)


def test_dropout_of_adapters_stays_on_after_the_forward_pass_is_chosen(tiny_policy):
    from learning.models.forwards import evaluation_mode, unwrap
    from learning.models.packed import choose_forward

    model = shake(attach_adapters(tiny_policy.model, options(lora_dropout=0.5)))
    choose_forward(unwrap(model))
    with torch.no_grad():
        assert not torch.equal(model(IDS).logits, model(IDS).logits)
        with evaluation_mode(model):
            assert torch.equal(model(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_all_linear_of_a_mixture_adapts_modules_and_no_stacked_experts(tmp_path, kind):
    """peft itself would adapt the router and replace the experts."""
    model = make_family(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = shake(attach_adapters(model, options(lora_target_modules="all-linear")))
    trained = {name.split(".lora_")[0] for name, p in adapted.named_parameters() if p.requires_grad}
    linear_modules = {n for n, m in make_family(kind).named_modules() if isinstance(m, torch.nn.Linear)} - {"lm_head"}
    assert trained == {f"base_model.model.{name}" for name in linear_modules}
    assert any(name.endswith("q_proj") for name in trained)
    logits, merged = adapted(IDS).logits, merge_weights(adapted)
    changed = {name for name, tensor in merged.items() if not torch.equal(tensor, before[name])}
    assert changed == {f"{name}.weight" for name in linear_modules}
    plain = make_family(kind)
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(IDS).logits, logits, atol=2e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
def test_modules_of_a_mixture_with_shared_experts_must_be_named():
    with pytest.raises(StepError, match="peft would adapt other modules than those named"):
        attach_adapters(make_family("qwen3_next"), options(lora_target_modules="all-linear"))
    adapted = attach_adapters(make_family("qwen3_next"), options(lora_target_modules=["q_proj", "v_proj"]))
    trained = {name.split(".lora_")[0] for name, p in adapted.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in trained} == {"q_proj", "v_proj"}
