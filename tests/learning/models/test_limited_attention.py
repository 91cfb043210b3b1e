import pytest
import torch
from torch.autograd import gradcheck
from transformers import AutoModelForCausalLM, MistralConfig

from learning.models import limited_attention
from learning.models.cpu_attention import Path
from learning.models.limited_attention import Limits, attend_limited
from learning.models.packed import choose_forward, pack, packed_logprobs

PATHS = [Path(0, 40), Path(40, 57, ((0, 40),)), Path(57, 70, ((0, 40),)), Path(70, 74, ((0, 40), (57, 70)))]
LIMITS = [Limits(), Limits(window=5), Limits(window=45), Limits(cap=1.5), Limits(window=16, cap=0.7)]


def dense(q_HMD, k_KMD, v_KME, sinks_H, paths, scaling, limits):
    """The textbook: one matrix of scores per path."""
    repeats = len(q_HMD) // len(k_KMD)
    k_HMD, v_HME = (x.repeat_interleave(repeats, 0) for x in (k_KMD, v_KME))
    outputs = []
    for path in paths:
        keys = torch.cat([torch.arange(*span) for span in (*path.chain, (path.start, path.end))])
        scores = q_HMD[:, path.start : path.end] @ k_HMD[:, keys].mT * scaling
        if limits.cap:
            scores = limits.cap * (scores / limits.cap).tanh()
        distance = torch.arange(path.before, path.before + path.length)[:, None] - torch.arange(len(keys))
        scores = scores.masked_fill((distance < 0) | (distance >= (limits.window or 1000)), -torch.inf)
        if sinks_H is not None:
            scores = torch.cat([scores, sinks_H[:, None, None].expand(-1, path.length, 1)], -1)
        outputs.append((scores.softmax(-1)[..., : len(keys)] @ v_HME[:, keys]).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def random_heads(length, dtype=torch.float64, with_sinks=False):
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 6), (2, 6), (2, 5))
    made = [torch.randn(length, h, d, dtype=dtype, generator=generator).transpose(0, 1) for h, d in shapes]
    sinks = [torch.randn(4, dtype=dtype, generator=generator)] if with_sinks else []
    return [x.requires_grad_() for x in (*made, *sinks)]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 0.15)])
def test_values_and_gradients_are_those_of_dense_attention(limits, with_sinks, dtype, allowed):
    ours = random_heads(77, dtype, with_sinks)
    theirs = [x.detach().double().requires_grad_() for x in ours]
    more = () if with_sinks else (None,)
    out = attend_limited(*ours, *more, PATHS, 0.4, limits)
    want = dense(*theirs, *more, PATHS, 0.4, limits)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    out.backward(weight)
    want.backward(weight.double())
    torch.testing.assert_close(out.double(), want, atol=allowed, rtol=0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            mine.grad.double(), other.grad, atol=allowed * max(1, other.grad.abs().max()), rtol=0
        )


def test_the_gradient_passes_gradcheck(monkeypatch):
    monkeypatch.setattr(limited_attention, "LONGEST_SPAN", 2)
    monkeypatch.setattr(limited_attention, "SHORTEST_SPAN", 2)
    paths = [Path(0, 5), Path(5, 8, ((0, 5),)), Path(8, 10, ((0, 5), (5, 8)))]
    given = random_heads(10, with_sinks=True)
    assert gradcheck(lambda *x: attend_limited(*x, paths, 0.7, Limits(4, 1.1)), given)


def mistral(window):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(vocab_size=61, num_key_value_heads=2, sliding_window=window, **shape)
    return AutoModelForCausalLM.from_config(config).eval()


def test_a_window_cuts_through_prompt_and_completion():
    model, generator = mistral(24), torch.Generator().manual_seed(1)
    prompt, *children = (torch.randint(3, 61, (n,), generator=generator).tolist() for n in (40, 9, 150))
    assert choose_forward(model).body == "forest"
    got_M, _ = packed_logprobs(model, pack([prompt, *children], [-1, 0, 0]))
    for child, got_L in zip(children, got_M[40:].split([9, 150]), strict=True):
        ids = torch.tensor([prompt + child])
        want_L = model(ids).logits[0, 39:-1].log_softmax(-1).gather(1, ids[0, 40:, None])[:, 0]
        torch.testing.assert_close(got_L, want_L, atol=1e-5, rtol=0)


def test_rows_within_the_window_take_the_fast_paths(monkeypatch):
    model, packed = mistral(24), pack([[5, 9, 12], [7, 8], [3]], [-1, 0, 0])
    choose_forward(model)  # its windows are narrowed
    monkeypatch.setattr("learning.models.segments.attend_limited", None)
    with torch.no_grad():
        assert packed_logprobs(model, packed)[0].isfinite().all()
    with pytest.raises(TypeError):
        packed_logprobs(model, pack([[5] * 30], [-1]))
