import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from learning.models import forwards
from learning.models import packed as packed_module
from learning.models.packed import choose_forward, pack, packed_logprobs
from schemas.errors import StepError
from tests.models.families import make_family

SHAPE = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def make(kind="qwen3", kv_heads=2, dtype=torch.float32):
    torch.manual_seed(0)
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[kind](
        **SHAPE, num_key_value_heads=kv_heads, **({"head_dim": 8} if kind == "qwen3" else {})
    )
    return AutoModelForCausalLM.from_config(config).to(dtype)


def forest(seed=0):
    """Ragged: two roots with children of all sizes, a grandchild pair, an empty segment, and a lone root."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [9, 4, 1, 7, 4, 5, 3, 0, 2, 6, 12, 3]
    parents = [-1, 0, 0, 0, 0, -1, 5, 5, 7, 3, 3, -1]
    return [torch.randint(0, 31, (n,), generator=generator).tolist() for n in lengths], parents


def path_of(segment, segments, parents):
    chain = []
    while segment >= 0:
        chain.insert(0, segments[segment])
        segment = parents[segment]
    return [t for s in chain for t in s]


def direct(model, ids, temperature=1.0):
    """One unpacked forward of a whole path: log-probabilities (first is 0) and entropies."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].double() / temperature
    logp = logits.log_softmax(-1)
    taken = logp.gather(1, torch.tensor(ids)[1:, None])[:, 0]
    zero = taken.new_zeros(1)
    return torch.cat([zero, taken]), torch.cat([zero, -(logp.exp() * logp).sum(-1)])


@pytest.mark.parametrize(("kind", "kv_heads"), [("qwen3", 2), ("qwen3", 4), ("llama", 1)])
def test_every_path_as_if_alone(kind, kv_heads):
    model, (segments, parents) = make(kind, kv_heads), forest()
    packed = pack(segments, parents)
    with torch.no_grad():
        logp, entropy = packed_logprobs(model, packed, temperature=0.7, entropy=True)
        for s in range(len(segments)):
            a, b = packed.cu_seqlens_S1[s], packed.cu_seqlens_S1[s + 1]
            ids = path_of(s, segments, parents)
            want_logp, want_entropy = direct(model, ids, 0.7)
            torch.testing.assert_close(logp[a:b].double(), want_logp[len(ids) - len(segments[s]) :], atol=1e-6, rtol=0)
            torch.testing.assert_close(
                entropy[a:b].double(), want_entropy[len(ids) - len(segments[s]) :], atol=1e-6, rtol=0
            )


def test_gradient_is_that_of_unshared_paths():
    model, (segments, parents) = make(dtype=torch.float64), forest(1)
    packed = pack(segments, parents)
    weight = torch.randn(len(packed.input_ids_M), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    logp, _ = packed_logprobs(model, packed)
    (logp * weight).sum().backward()
    got = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    for s in range(len(segments)):
        a, b = packed.cu_seqlens_S1[s], packed.cu_seqlens_S1[s + 1]
        ids = path_of(s, segments, parents)
        if b > a:
            (direct(model, ids)[0][len(ids) - len(segments[s]) :] * weight[a:b]).sum().backward()
    for name, parameter in model.named_parameters():
        # The model itself computes its norms in float32.
        torch.testing.assert_close(got[name], parameter.grad, atol=2e-6, rtol=1e-5)


def test_only_needed_tokens_and_chunked_logits(monkeypatch):
    model, (segments, parents) = make(dtype=torch.float64), forest(3)
    packed = pack(segments, parents)
    whole, entropy = packed_logprobs(model, packed, entropy=True)
    needed = torch.arange(len(whole)) % 3 == 0
    monkeypatch.setattr(packed_module, "LOGITS_PER_CHUNK", 31 * 4)
    part, part_entropy = packed_logprobs(model, packed, entropy=True, needed_M=needed)
    torch.testing.assert_close(part, whole.where(needed, 0.0), atol=1e-13, rtol=0)
    torch.testing.assert_close(part_entropy, entropy.where(needed, 0.0), atol=1e-13, rtol=0)
    grads = torch.autograd.grad(part.sum(), list(model.parameters()))
    want = torch.autograd.grad(whole[needed].sum(), list(model.parameters()))
    for got, expected in zip(grads, want, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-9)


def test_chunks_of_logits_have_rows_that_are_not_padded(monkeypatch):
    """The head is the widest layer: filling up its rows would copy all logits and their gradients once more."""
    seen, score = [], packed_module.score_rows
    monkeypatch.setattr(packed_module, "score_rows", lambda rows, *given: seen.append(len(rows)) or score(rows, *given))
    for most, rows in ((341, 336), (37, 32), (7, 7)):
        monkeypatch.setattr(packed_module, "LOGITS_PER_CHUNK", 31 * most)
        seen.clear()
        with torch.no_grad():
            packed_logprobs(make(), pack([[1 + n % 30 for n in range(700)]], [-1]))
        assert seen == [rows] * (699 // rows) + [699 % rows] * (699 % rows > 0)
        assert forwards._pad(rows) == rows


def test_attention_is_given_back():
    model = make()
    before = model.config._attn_implementation
    packed_logprobs(model, pack([[1, 2], [3]], [-1, 0]))
    assert model.config._attn_implementation == before


def test_a_parent_comes_first():
    with pytest.raises(ValueError, match="comes before"):
        pack([[1], [2]], [1, -1])


def test_a_sliding_window_shorter_than_the_paths_is_exact():
    config = Qwen3Config(
        **SHAPE, num_key_value_heads=2, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=0
    )
    model, (segments, parents) = AutoModelForCausalLM.from_config(config).eval(), forest()
    packed = pack(segments, parents)
    assert choose_forward(model).body == "forest"
    with torch.no_grad():
        logp, _ = packed_logprobs(model, packed)
        ids = path_of(4, segments, parents)
        a, b = packed.cu_seqlens_S1[4], packed.cu_seqlens_S1[5]
        torch.testing.assert_close(logp[a:b].double(), direct(model, ids)[0][-4:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("watched", [(), ("entropy",)])
def test_log_probabilities_and_their_gradient_are_bit_identical_to_autograd(watched):
    generator = torch.Generator().manual_seed(0)
    logits_BV = 5 * torch.randn(40, 130, generator=generator)
    ids_B, grad_B = torch.randint(0, 130, (40,), generator=generator), torch.randn(40, generator=generator)
    ours, autograd = logits_BV.clone().requires_grad_(), logits_BV.clone().requires_grad_()
    lp_B, *entropies = packed_module.score_rows(ours, ids_B, lambda rows: rows * 1.0, 0.7, ("lp",), watched)
    logp_BV = (autograd * 1.0 / 0.7).log_softmax(-1)
    want_B = logp_BV.gather(1, ids_B[:, None])[:, 0]
    lp_B.backward(grad_B)
    want_B.backward(grad_B)
    assert torch.equal(lp_B, want_B)
    assert torch.equal(ours.grad, autograd.grad)
    assert all(torch.equal(x, -(logp_BV.exp() * logp_BV).sum(-1)) and not x.requires_grad for x in entropies)
    assert len(entropies) == len(watched)


def test_log_probabilities_take_the_memory_of_the_logits_and_leave_a_models_own_logits_as_they_are():
    generator = torch.Generator().manual_seed(0)
    rows_BV, ids_B = torch.randn(9, 31, generator=generator).requires_grad_(), torch.arange(9)
    made, kept = [], []

    def head(rows):
        made.append(rows * 2.0)
        return made[-1]

    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        packed_module.score_rows(rows_BV, ids_B, head, 1.0, ("lp",), ())
        assert [x.data_ptr() for x in kept if x.shape == (9, 31)] == [made[0].data_ptr()]
        before_BV = rows_BV.detach().clone()
        packed_module.score_rows(rows_BV, ids_B, torch.nn.Identity(), 1.0, ("lp",), ())
    assert torch.equal(rows_BV, before_BV)


def test_a_model_that_cannot_compute_in_the_precision_of_its_weights_is_refused_with_advice():
    """transformers' xLSTM multiplies states in float32 with weights in bfloat16."""
    assert choose_forward(make_family("xlstm")).body == "padded"
    with pytest.raises(StepError, match=r"^xlstm: its forward pass .* in bfloat16 \(.*dtype.*\); use dtype: float32$"):
        choose_forward(make_family("xlstm").to(torch.bfloat16))
