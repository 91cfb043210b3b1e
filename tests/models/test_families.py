"""Every architecture gives the numbers of transformers' own forward, in training and in sampling, or is refused."""

from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from learning.data.tokenizers import characters
from learning.generation.engines import own_cache, slot_attention
from learning.generation.engines.slot_attention import explain_slot_misfit
from learning.generation.engines.slots import Slots
from learning.generation.engines.torch import Engine
from learning.memory_model.expected_forward import PADDED, expect_forward
from learning.models import segments as segments_module
from learning.models.forwards import apply_compute_options
from learning.models.packed import choose_forward, forest_hidden, pack, packed_logprobs
from learning.models.padded import padded_hidden
from learning.models.policy import Policy, load_policy, save_policy
from learning.models.reduced import narrow_windows
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from schemas.training import Training
from tests.models.families import FAMILIES, VOCABULARY, make_family

PARENTS = [-1, 0, 0, -1, 3, 3, 5]
EOS = 2
PACKED_EXPERTS = {
    kind: {f"model.layers.{layer}.mlp.experts.gate_up_proj" for layer in range(2)}
    for kind in ("gpt_oss", "hy_v4", "inkling_text", "minimax_m3_vl_text", "zaya")
}
"""Checkpoints that hold all experts of a layer in one tensor, by transformers' own conversions too."""
OWN_POSITIONS = {
    *("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
}
"""Families whose forward counts positions from the padding token, and whose `generate` from 0: other numbers."""
WRONG_CACHE = {"rwkv", *OWN_POSITIONS}
"""Families whose cached decoding in the installed transformers differs from their own forward."""
OWN_CACHE = {
    *("bloom", "codegen", "falcon", "gpt_neo", "gptj", "llama4_text", "minimax"),
    *("mpt", "nemotron", "recurrent_gemma", "rwkv", "stablelm"),
    *("axk2", "deepseek_v32", "deepseek_v4", "doge", "glm_moe_dsa", "hy_v4", "inkling_text"),
    *("gpt_neox_japanese", "olmo_hybrid", "openai-gpt", "xglm"),
    *("big_bird", "megatron-bert", "moshi", "qwen4_exp_text", "rembert", "roformer", "trocr", "xlstm"),
    *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"),
    *OWN_POSITIONS,
}
"""Families that the engine does not decode over slots; all others are batched continuously."""
PADDED_FAMILIES = {kind for kinds in PADDED.values() for kind in kinds}
"""Families that take transformers' own forward; all others take the forest."""
OWN_HEAD = {
    *("inkling_text", "modernbert-decoder", "xlstm", "bert", "big_bird", "electra", "ernie", "megatron-bert"),
    *("rembert", "roc_bert", "roformer", *OWN_POSITIONS),
}
"""Families whose logits only their own forward gives."""
IN_FLOAT64 = {"gemma4_text", "gemma4_unified_text", "youtu"}
"""Families whose numbers differ by more than 1e-5 in float32, from rounding alone."""
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed


def ragged_forest():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in (12, 15, 9, 5, 20, 6, 3)]


def path_of(segment, segments):
    return [] if segment < 0 else path_of(PARENTS[segment], segments) + segments[segment]


def direct_logprobs(model, ids):
    """Log-probabilities of a row by itself, from the second token on."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


@pytest.mark.parametrize("kind", FAMILIES)
def test_logprobs_and_gradients_are_those_of_the_own_forward(kind):
    model, segments = make_family(kind).to(torch.float64 if kind in IN_FLOAT64 else torch.float32), ragged_forest()
    starts = [0, *accumulate(map(len, segments))]
    weight = torch.randn(starts[-1], generator=torch.Generator().manual_seed(1))
    logp, _ = packed_logprobs(model, pack(segments, PARENTS))
    choice = choose_forward(model)
    expected = expect_forward(model.config.to_dict())
    assert choice.body == expected.split()[0], (expected, choice.reason)
    assert (choice.body == "padded") == (kind in PADDED_FAMILIES)
    assert (choice.head == "own") == (kind in OWN_HEAD)
    (logp * weight).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for s, segment in enumerate(segments):
        truth = direct_logprobs(model, path_of(s, segments))[-len(segment) :]
        own = slice(starts[s + 1] - len(truth), starts[s + 1])
        torch.testing.assert_close(logp[own].detach().float(), truth.detach(), atol=1e-5, rtol=0)
        (truth * weight[own]).sum().backward()
    for name, p in model.named_parameters():
        if p.grad is not None and float(p.grad.abs().max()) > 0:
            torch.testing.assert_close(gradients[name], p.grad, atol=1e-5 * max(1.0, float(p.grad.abs().max())), rtol=0)


@pytest.mark.parametrize("kind", FAMILIES)
def test_completions_are_drawn_from_the_own_forward(kind):
    precision = torch.float64 if kind == "youtu" else torch.float32
    model, prompts = make_family(kind).to(precision), [segment[:12] for segment in ragged_forest()[:5]]
    engine = Engine(SimpleNamespace(model=model, stop_ids=(EOS,), max_length=256), max_slots=5)
    requests, sampling = [Request(prompt, 2, seed=5) for prompt in prompts], Sampling(1.0, max_new_tokens=12)
    assert bool(explain_slot_misfit(model)) == (kind in OWN_CACHE), explain_slot_misfit(model)
    completions = engine.generate(requests, sampling)
    assert ("no cache" in engine.describe()["decoding"]) == (kind in WRONG_CACHE)
    for request, generations in zip(requests, completions, strict=True):
        for one in generations:
            with torch.no_grad():
                truth = direct_logprobs(model, request.prompt_ids + one.token_ids)[-len(one.token_ids) :]
            torch.testing.assert_close(torch.tensor(one.logprobs), truth, atol=1e-5, rtol=0)
    flight, token_ids = engine.flight(sampling), {}
    for ticket, request in enumerate(requests):
        flight.add(ticket, request)
    while flight.running:
        token_ids |= {(ticket, one.sample): one.token_ids for ticket, one in flight.step()}
    assert token_ids == {(r, i): one.token_ids for r, row in enumerate(completions) for i, one in enumerate(row)}
    greedy = engine.generate([Request(prompts[0], 1, seed=0)], Sampling(0.0, max_new_tokens=8))[0][0].token_ids
    assert greedy == generate_greedily(kind, model, prompts[0])


def generate_greedily(kind, model, prompt):
    """Return what transformers' `generate` gives; where that is wrong, the likeliest tokens of the own forward."""
    ids = torch.tensor([prompt])
    if kind in OWN_POSITIONS:
        while len(ids[0]) < len(prompt) + 8 and EOS not in ids[0, len(prompt) :]:
            with torch.no_grad():
                ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
        return ids[0, len(prompt) :].tolist()
    model.generation_config.forced_eos_token_id = None  # BART's would end every completion
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": EOS, "pad_token_id": 0}
    options["use_cache"] = kind not in WRONG_CACHE
    return model.generate(ids, max_new_tokens=8, **options)[0, ids.shape[1] :].tolist()


def test_a_model_that_decodes_other_numbers_without_a_cache_too_is_refused(monkeypatch):
    monkeypatch.setattr(own_cache, "_is_exact", lambda model, cached: False)
    engine = Engine(SimpleNamespace(model=make_family("bloom"), stop_ids=(EOS,), max_length=256), max_slots=5)
    with pytest.raises(StepError, match="decoding a bloom model token by token fails or gives other numbers"):
        engine.generate([Request([3, 4, 5], 1, seed=5)], Sampling(1.0, max_new_tokens=3))


def test_a_model_whose_cache_cannot_be_used_is_decoded_without_it(monkeypatch):
    model, truth = make_family("bloom"), make_family("bloom")
    request, sampling = Request([3, 4, 5], 2, seed=5), Sampling(1.0, max_new_tokens=3)

    def generate(*args, **kwargs):
        raise ValueError("states of another shape")

    monkeypatch.setattr(model, "generate", generate)
    engines = [
        Engine(SimpleNamespace(model=one, stop_ids=(EOS,), max_length=256), max_slots=5) for one in (model, truth)
    ]
    uncached, cached = (engine.generate([request], sampling)[0] for engine in engines)
    assert [one.token_ids for one in uncached] == [one.token_ids for one in cached]
    assert "no cache" in engines[0].describe()["decoding"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_saved_model_loads_again_and_has_the_names_of_published_checkpoints(kind, tmp_path):
    model, tokenizer = make_family(kind), characters()
    tokenizer.model_max_length = 96
    save_policy(Policy(model, tokenizer, 96), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert not any(name.endswith("mlp.experts.gate_up_proj") for name in names - PACKED_EXPERTS.get(kind, set()))
    again, ids = load_policy(tmp_path).model, torch.arange(3, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-6, rtol=0)


def test_at_least_55_families_are_compared_and_50_take_the_forest():
    assert len(FAMILIES) >= 55
    assert len(FAMILIES) - len(PADDED_FAMILIES) >= 50
    assert set(FAMILIES) > PADDED_FAMILIES


def test_wrong_attention_is_found_on_the_weights(monkeypatch):
    """A model that scales its queries by itself, which neither config nor signature tells."""
    model = make_family("llama")
    assert choose_forward(model).body == "forest"
    planted = make_family("llama")
    attention = planted.model.layers[1].self_attn
    inner = attention.forward

    def forward(*args, **kwargs):
        plain = planted.config._attn_implementation == "sdpa"
        attention.scaling = 8**-0.5 * (1.0 if plain else 0.5)
        return inner(*args, **kwargs)

    monkeypatch.setattr(attention, "forward", forward)
    choice = choose_forward(planted)
    assert choice.body == "padded"
    assert "its own forward gives other numbers" in choice.reason
    segments = ragged_forest()
    packed = pack(segments, PARENTS)
    with torch.no_grad():
        truth = direct_logprobs(planted, segments[0])
        right, _ = packed_logprobs(planted, packed)
        assert float((right[1:12] - truth).abs().max()) < 1e-5
        wrong = forest_hidden(planted, packed)
        assert float((wrong[:12] - planted.model(torch.tensor([segments[0]]))[0][0]).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("planted", [False, True])
def test_a_model_that_computes_in_bfloat16_takes_the_forest_if_it_is_exact(monkeypatch, kind, planted):
    """Its hidden states are float32 and differ by the rounding of bfloat16, which says nothing against the forest."""
    model = make_family(kind)
    apply_compute_options(model, Training(bf16=True))
    if planted:
        plant(monkeypatch, model, 1, scaling=0.5)
    choice = choose_forward(model)
    assert choice.body == ("padded" if planted else "forest"), choice.reason
    packed = pack(ragged_forest(), PARENTS)
    with torch.no_grad():
        forest, own = forest_hidden(model, packed), padded_hidden(model, packed)
    if not planted:
        assert 1e-4 < float((forest - own).abs().max() / own.abs().max()) < 0.05
    assert model.base_model.forward.__func__ is not type(model.base_model).forward  # computes in bfloat16 again


@pytest.mark.parametrize("kind", ["big_bird", "bloom", "gptj", "llama4_text"])
def test_weights_in_bfloat16_are_decoded_over_an_own_cache_where_slots_are_wrong(kind):
    engine = Engine(SimpleNamespace(model=make_family(kind).bfloat16(), stop_ids=(EOS,), max_length=256), max_slots=5)
    engine.generate([Request([3, 4, 5], 1, seed=5)], Sampling(1.0, max_new_tokens=3))
    assert engine.describe()["decoding"].startswith("transformers' own cache")


def plant(monkeypatch, model, layer, name=segments_module.NAME, **changed):
    """Make a layer call the attention of the forest, or another one, with other arguments than its own."""
    inner = ALL_ATTENTION_FUNCTIONS[name]

    def attend(module, *args, **kwargs):
        wrong = module is model.model.layers[layer].self_attn
        return inner(module, *args, **{**kwargs, **(changed if wrong else {})})

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, attend)


PLANTED = [
    ("gemma2", 0, {"sliding_window": None}),
    ("gemma2", 1, {"softcap": 0.5}),
    ("gemma3_text", 0, {"sliding_window": 5}),
    ("mistral", 1, {"sliding_window": 3}),
    ("gpt_oss", 1, {"s_aux": None}),
]


PRECISIONS = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("kind", "layer", "changed"), PLANTED)
def test_wrong_windows_caps_and_sinks_over_slots_are_found_on_the_weights(kind, layer, changed, precision, monkeypatch):
    planted = make_family(kind, sliding_window=128).to(precision)
    plant(monkeypatch, planted, layer, slot_attention.NAME, **changed)
    assert explain_slot_misfit(planted) == f"{kind}: decoding over slots gives other numbers than its own forward"
    monkeypatch.undo()
    assert not explain_slot_misfit(make_family(kind, sliding_window=128).to(precision))


def test_wrong_states_of_slots_are_found_on_the_weights(monkeypatch):
    """A cache that gives every slot the states of the first prompt."""
    place = Slots.place
    monkeypatch.setattr(Slots, "place", lambda self, at, prefix, source, n: place(self, at * 0, prefix, source, n))
    reason = explain_slot_misfit(make_family("mamba2"))
    assert reason == "mamba2: decoding over slots gives other numbers than its own forward"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("kind", "layer", "changed"), PLANTED)
def test_wrong_windows_caps_and_sinks_are_found_on_the_weights(kind, layer, changed, precision, monkeypatch):
    planted = make_family(kind, sliding_window=128).to(precision)
    plant(monkeypatch, planted, layer, **changed)
    choice = choose_forward(planted)
    assert (choice.body, choice.reason) == ("padded", f"{kind}: its own forward gives other numbers")
    monkeypatch.undo()
    assert choose_forward(make_family(kind, sliding_window=128).to(precision)).body == "forest"


@pytest.mark.parametrize("kind", sorted(IN_FLOAT64 | {"granitemoe", "phimoe", "solar_open", "falcon_h1", "lfm2_moe"}))
@pytest.mark.parametrize("seed", range(4))
def test_weights_in_bfloat16_take_the_forward_of_weights_in_float32(kind, seed):
    """Also where rounding chooses other experts or sums cancel: it changes more than what LFM2 MoE gets wrong."""
    choices = [choose_forward(make_family(kind, seed).to(precision)) for precision in PRECISIONS]
    assert choices[0] == choices[1]


def test_windows_are_narrowed_for_the_check_and_restored():
    """With 128 tokens of window the few tokens of the check see all: numbers alone would not tell."""
    model = make_family("mistral", sliding_window=128)
    with narrow_windows(model, 4):
        assert model.config.sliding_window == 4
    assert choose_forward(model).body == "forest"
    assert model.config.sliding_window == 128
    gemma = make_family("gemma3_text", sliding_window=64)
    choose_forward(gemma)
    assert {layer.self_attn.sliding_window for layer in gemma.model.layers} <= {64, None}


def test_the_check_computes_few_tokens():
    """The price per model: its own passes over two paths and over their prefix alone, and one over the forest."""
    model, seen = make_family("llama"), []
    model.model.layers[0].register_forward_hook(lambda _, given, out: seen.append(out.shape[0] * out.shape[1]))
    choose_forward(model)
    assert seen == [2 * 13, 6, 17]
