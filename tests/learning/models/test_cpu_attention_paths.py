import pytest
import torch
from torch.autograd import gradcheck
from transformers import AutoModelForCausalLM, Qwen3Config

from learning.models.cpu_attention import Path, attend_paths, list_parts
from learning.models.packed import pack, packed_logprobs
from learning.models.segments import make_layout

PATHS = [
    Path(0, 40),
    Path(40, 57, ((0, 40),)),
    Path(57, 70, ((0, 40),)),
    Path(70, 74, ((0, 40), (57, 70))),
    Path(80, 100),
]
SIZE = 103
"""Tokens 74 to 80 and 100 to 103 are in no path: they have no gradient."""


def dense(q_HMD, k_KMD, v_KME, paths, scaling):
    """The textbook: one matrix of scores per path."""
    repeats = len(q_HMD) // len(k_KMD)
    k_HMD, v_HME = (x.repeat_interleave(repeats, 0) for x in (k_KMD, v_KME))
    outputs = []
    for path in paths:
        keys = torch.cat([torch.arange(*span) for span in (*path.chain, (path.start, path.end))])
        scores = q_HMD[:, path.start : path.end] @ k_HMD[:, keys].mT * scaling
        later = torch.ones(path.length, len(keys)).triu(path.before + 1).bool()
        outputs.append((scores.masked_fill(later, -torch.inf).softmax(-1) @ v_HME[:, keys]).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def random_heads(heads, kv_heads, size, values, dtype=torch.float64, length=SIZE):
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, size), (kv_heads, size), (kv_heads, values))
    made = [torch.randn(length, h, d, dtype=dtype, generator=generator).transpose(0, 1) for h, d in shapes]
    return [x.requires_grad_() for x in made]


@pytest.mark.parametrize(("heads", "kv_heads", "size", "values"), [(4, 2, 8, 8), (3, 3, 8, 5), (4, 1, 5, 8)])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_values_and_gradients_are_those_of_dense_attention(heads, kv_heads, size, values, dtype, allowed):
    ours = random_heads(heads, kv_heads, size, values, dtype)
    theirs = [x.detach().double().requires_grad_() for x in ours]
    out, want = attend_paths(*ours, PATHS, 0.4), dense(*theirs, PATHS, 0.4)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    out.backward(weight)
    want.backward(weight.double())
    torch.testing.assert_close(out.double(), want, atol=allowed, rtol=0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.double(), other.grad, atol=allowed, rtol=0)
        assert not mine.grad[:, 74:80].any()


def test_the_gradient_of_merged_parts_passes_gradcheck():
    paths = [Path(0, 5), Path(5, 8, ((0, 5),)), Path(8, 10, ((0, 5), (5, 8)))]
    given = random_heads(2, 1, 3, 3, length=10)
    assert gradcheck(lambda *x: attend_paths(*x, paths, 0.7), given, fast_mode=False)


def test_siblings_are_one_long_query_of_their_parent():
    own, shared = [[part for part in list_parts(PATHS) if part.is_causal is own] for own in (True, False)]
    assert [part.queries for part in own] == [slice(path.start, path.end) for path in PATHS]
    assert [(part.queries, part.places, part.keys) for part in shared] == [
        (slice(40, 74), slice(40, 74), slice(0, 40)),
        (slice(70, 74), slice(70, 74), slice(57, 70)),
    ]


def test_nothing_of_the_size_of_the_scores_is_kept():
    """What the backward pass needs grows with the tokens, not with their pairs."""

    def kept(length):
        saved = []
        heads = random_heads(2, 1, 8, 8, torch.float32, 2 * length)
        paths = [Path(0, length), Path(length, 2 * length, ((0, length),))]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
            attend_paths(*heads, paths, 0.4)
        return sum(saved)

    assert kept(128) == 2 * kept(64)


def test_long_paths_blocks_and_rows_equal_the_model():
    torch.manual_seed(0)
    shape = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    config = Qwen3Config(**shape, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(1)
    lengths, parents = [600, 90, 70, 5, 60, 0, 33, 20, 4], [-1, 0, 0, 0, -1, 4, 5, -1, 7]
    packed = pack([torch.randint(0, 31, (n,), generator=generator).tolist() for n in lengths], parents)
    borders, ids = packed.cu_seqlens_S1.tolist(), packed.input_ids_M.tolist()
    spans = [(borders[s], borders[s + 1]) for s in range(len(lengths))]
    assert [(path.start, path.end) for path in packed.layout.long] == spans[:3]
    assert packed.layout.rows == (spans[4],)
    assert [block.shape[2] for block in packed.layout.blocks] == [20, 4, 33, 5]
    weight_M = torch.randn(len(ids), generator=generator)
    got_M, _ = packed_logprobs(model, packed)
    (got_M * weight_M).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for s, (start, end) in enumerate(spans):
        chain, segment = [], s
        while segment >= 0:
            chain, segment = ids[slice(*spans[segment])] + chain, parents[segment]
        if start < end:
            logits_LV = model(input_ids=torch.tensor([chain])).logits[0, :-1]
            want_L = logits_LV.log_softmax(-1).gather(1, torch.tensor(chain)[1:, None])[:, 0]
            tail = min(end - start, len(want_L))
            torch.testing.assert_close(got_M[end - tail : end], want_L[-tail:], atol=1e-5, rtol=0)
            (want_L[-tail:] * weight_M[end - tail : end]).sum().backward()
    for name, parameter in model.named_parameters():
        scale = max(1.0, float(parameter.grad.abs().max()))
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5 * scale, rtol=0)


def test_only_a_cpu_has_the_kernel():
    starts, parents = [0, 600, 700, 800], [-1, 0, 0]
    assert make_layout(starts, parents).long == ()
    assert len(make_layout(starts, parents, on_cpu=True).long) == 3
