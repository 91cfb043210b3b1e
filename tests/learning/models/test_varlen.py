"""FlexAttention over a forest: its masks pair by pair, its numbers against each model's own forward, and its choice."""

import random
import shutil

import pytest
import torch
from torch.nn.attention import flex_attention as flex_module

from learning.models import limited_attention, segments
from learning.models import packed as packed_module
from learning.models.packed import (
    choose_body,
    choose_forward,
    describe_forward,
    explain_varlen_misfit,
    pack,
    packed_hidden,
    packed_logprobs,
)
from tests.models.families import VOCABULARY, make_family

pytestmark = pytest.mark.filterwarnings("ignore")  # FlexAttention warns that its eager form keeps all scores
PARENTS = [-1, 0, 0, -1, 3, 3, 5]
FAMILIES = ["llama", "qwen3_moe", "mistral", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v3"]
"""Plain and grouped heads, experts, windows, caps, sinks, and values of another size than keys."""


@pytest.fixture
def eager_backward(monkeypatch):
    """The backward pass of FlexAttention's eager form, which torch refuses to begin on a CPU."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def draw_segments(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def path_of(segment, segments, parents):
    return [] if segment < 0 else path_of(parents[segment], segments, parents) + segments[segment]


def list_seen(packed, parents, window):
    """Which tokens each token sees, from the definition: those of its own path that are not after it."""
    segment_M = torch.repeat_interleave(torch.arange(len(parents)), packed.cu_seqlens_S1.diff())
    above = torch.eye(len(parents), dtype=torch.bool)
    for segment, parent in enumerate(parents):
        if parent >= 0:
            above[segment] |= above[parent]
    apart = packed.position_ids_M[:, None] - packed.position_ids_M
    seen = above[segment_M][:, segment_M] & (apart >= 0)
    return seen if window is None else seen & (apart < window)


@pytest.mark.parametrize("window", [None, 1, 7, 130, 500])
def test_masks_are_those_of_the_paths_and_skip_exactly_the_tiles_without_scores(window):
    for seed in range(12):
        source = random.Random(seed)
        count = source.randint(1, 9)
        parents = [source.randint(-1, s - 1) for s in range(count)]
        segments_ = [[1] * source.choice([0, 1, 5, 40, 127, 128, 129, 300]) for _ in range(count)]
        packed = pack([*segments_, [1, 2]], [*parents, -1])
        seen, mask = list_seen(packed, [*parents, -1], window), packed.masks.within(window)
        at = torch.arange(len(seen))
        assert torch.equal(mask.mask_mod(0, 0, at[:, None], at), seen)
        tiles = -(-len(seen) // 128)
        wide = torch.zeros(tiles * 128, tiles * 128, dtype=torch.bool)
        wide[: len(seen), : len(seen)] = seen
        squares = wide.view(tiles, 128, tiles, 128).transpose(1, 2).flatten(2)
        partial_, full = (
            [set(columns[row, : counts[row]].tolist()) for row in range(tiles)]
            for counts, columns in (
                (mask.kv_num_blocks[0, 0], mask.kv_indices[0, 0]),
                (mask.full_kv_num_blocks[0, 0], mask.full_kv_indices[0, 0]),
            )
        )
        for row in range(tiles):
            assert full[row] == set(squares[row].all(-1).nonzero()[:, 0].tolist())
            assert partial_[row] == set(squares[row].any(-1).nonzero()[:, 0].tolist()) - full[row]


@pytest.mark.parametrize("kind", FAMILIES)
def test_logprobs_and_gradients_are_those_of_the_own_forward(kind, eager_backward):
    model, rows = make_family(kind), draw_segments((12, 15, 9, 5, 20, 6, 3))
    packed = pack(rows, PARENTS)
    weight = torch.randn(len(packed.input_ids_M), generator=torch.Generator().manual_seed(1))
    logp, _ = packed_logprobs(model, packed, body="varlen")
    (logp * weight).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    for s, b in enumerate(packed.cu_seqlens_S1[1:]):
        ids = torch.tensor([path_of(s, rows, PARENTS)])
        truth = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        own = truth[-len(rows[s]) :]
        torch.testing.assert_close(logp[b - len(own) : b], own, atol=1e-5, rtol=0)
        (own * weight[b - len(own) : b]).sum().backward()
    for got, parameter in zip(gradients, model.parameters(), strict=True):
        if parameter.grad is not None:
            bound = 1e-5 * max(1.0, float(parameter.grad.abs().max()))
            torch.testing.assert_close(got, parameter.grad, atol=bound, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "gemma2"])
def test_the_check_compares_each_layer_forward_and_backward(kind, eager_backward, monkeypatch):
    sizes = {"max_position_embeddings": 512}
    assert explain_varlen_misfit(make_family(kind, **sizes)) == ""
    seen = []
    close = packed_module.is_close
    monkeypatch.setattr(packed_module, "is_close", lambda *pair: seen.append(pair[0].shape) or close(*pair))
    explain_varlen_misfit(model := make_family(kind, **sizes))
    per_layer = 5 if kind == "gpt_oss" else 4  # outputs, and gradients of queries, keys, values and sinks
    assert len(seen) == per_layer * len(model.model.layers)


PLANTED = [
    ("llama", lambda given: {"scaling": given["scaling"] * 0.9}),
    ("mistral", lambda given: {"sliding_window": None}),
    ("gemma2", lambda given: {"softcap": 1.0}),
    ("gpt_oss", lambda given: {"s_aux": None if given.get("s_aux") is None else given["s_aux"] + 1}),
]


@pytest.mark.parametrize(("kind", "change"), PLANTED)
def test_a_wrong_kernel_is_found_on_the_weights_and_not_used(kind, change, eager_backward, monkeypatch):
    right = limited_attention.attend_flex
    monkeypatch.setattr(segments, "attend_flex", lambda *given, **more: right(*given, **{**more, **change(more)}))
    model = make_family(kind, max_position_embeddings=512, sliding_window=256)
    assert explain_varlen_misfit(model) == "FlexAttention gives other numbers"


def test_a_kernel_that_fails_is_not_used_and_named(monkeypatch):
    model = make_family("mistral", max_position_embeddings=512)
    monkeypatch.setattr(packed_module, "_is_on_gpu", lambda packed: True)
    packed = pack(draw_segments((12, 15, 9)), [-1, 0, 0])
    assert choose_body(model, packed) == "forest"  # on a CPU torch has no backward pass for it
    note = "forest (agrees with its own forward on its weights; no varlen: FlexAttention fails (NotImplementedError))"
    assert describe_forward(model)["forward"] == note
    assert explain_varlen_misfit(make_family("llama")) == "has only 256 positions"


def test_it_is_chosen_on_gpus_for_limits_and_where_many_scores_would_be_kept(monkeypatch):
    monkeypatch.setattr(packed_module, "explain_varlen_misfit", lambda model: "")
    short, long = (pack(draw_segments((n, n, n)), [-1, 0, 0]) for n in (6, 40))
    plain, limited, capped = (make_family(kind) for kind in ("llama", "mistral", "gemma2"))
    padded = make_family("lfm2")
    assert choose_body(limited, long) == "forest"
    monkeypatch.setattr(packed_module, "_is_on_gpu", lambda packed: True)
    assert choose_body(limited, long) == choose_body(capped, long) == "varlen"  # windows of 8 tokens
    assert choose_body(plain, long) == "forest"
    monkeypatch.setattr(packed_module, "MANY_SCORES", short.layout.scores * plain.config.num_attention_heads - 1)
    assert short.layout.scores == 2 * 6 * 12
    assert choose_body(plain, short) == "varlen"
    monkeypatch.setattr(packed_module, "MANY_SCORES", short.layout.scores * plain.config.num_attention_heads)
    assert choose_body(plain, short) == "forest"
    assert choose_forward(padded).body == choose_body(padded, long) == "padded"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles kernels for CPUs with g++")
def test_the_compiled_form_for_cpus_gives_the_same_hidden_states(monkeypatch):
    """For a model without soft caps: the C++ that torch 2.13 writes for a tanh of scores does not compile."""
    model = make_family("llama")
    monkeypatch.setattr(limited_attention, "flex_attention", limited_attention._compile_flex())
    for lengths in ((60, 90, 75), (70, 60, 90)):
        packed = pack(draw_segments(lengths), [-1, 0, 0])
        with torch.no_grad():
            varlen, forest = (packed_hidden(model, packed, body=body) for body in ("varlen", "forest"))
        torch.testing.assert_close(varlen, forest, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FAMILIES)
def test_compiled_kernels_give_the_gradients_of_the_forest(kind):
    model = make_family(kind, max_position_embeddings=512).to("cuda")
    assert explain_varlen_misfit(model) == ""
    rows = draw_segments((200, 150, 70, 5, 130, 90, 3))
    packed = pack(rows, PARENTS).to("cuda")
    weight = torch.randn(len(packed.input_ids_M), generator=torch.Generator().manual_seed(1)).to("cuda")
    results = []
    for body in ("forest", "varlen"):
        model.zero_grad()
        logp, _ = packed_logprobs(model, packed, body=body)
        (logp * weight).sum().backward()
        results.append([logp.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for forest, varlen in zip(*results, strict=True):
        scale = max(1.0, float(forest.abs().max()))
        torch.testing.assert_close(varlen, forest, atol=1e-5 * scale, rtol=0)
