from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from learning.models import cpu_attention, segments
from learning.models.cpu_attention import attend_rows
from learning.models.packed import choose_forward, pack, packed_logprobs

LENGTHS = (49, 300, 64, 130, 512)
SHAPE = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def plain(q_HMD, k_HMD, v_HMD, rows, scaling):
    """The textbook, one row and one head at a time."""
    outputs = []
    for start, end in rows:
        scores_HLL = q_HMD[:, start:end] @ k_HMD[:, start:end].mT * scaling
        later_LL = torch.ones(end - start, end - start).triu(1).bool()
        share_HLL = scores_HLL.masked_fill(later_LL, -torch.inf).softmax(-1)
        outputs.append((share_HLL @ v_HMD[:, start:end]).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


@pytest.mark.parametrize("token_major", [True, False])
def test_rows_and_their_gradients_as_the_textbook_says(token_major):
    borders = torch.tensor([0, *LENGTHS]).cumsum(0).tolist()
    rows = tuple(pairwise(borders))[1:]  # the first row is somebody else's: its gradient is 0
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(3, borders[-1], 8, dtype=torch.float64, generator=generator) for _ in range(3)]
    if token_major:
        made = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in made]
    ours, theirs = ([x.clone().requires_grad_() for x in made] for _ in range(2))
    out, want = attend_rows(*ours, rows, 0.3), plain(*theirs, rows, 0.3)
    weight = torch.randn(want.shape, dtype=torch.float64, generator=generator)
    out.backward(weight)
    want.backward(weight)
    torch.testing.assert_close(out, want, atol=1e-13, rtol=0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-12, rtol=0)
        assert not mine.grad[:, : LENGTHS[0]].any()


@pytest.mark.parametrize(
    ("config", "kv_heads", "dtype", "allowed"),
    [
        (Qwen3Config, 2, torch.float32, 2e-6),
        (LlamaConfig, 4, torch.float32, 2e-6),
        (LlamaConfig, 1, torch.bfloat16, 0.05),
    ],
)
def test_long_rows_beside_short_ones_and_families(config, kv_heads, dtype, allowed):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SHAPE, num_key_value_heads=kv_heads)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    lengths, parents = [70, 5, 600, 90, 12, 48, 47], [-1, 0, -1, -1, 3, -1, -1]
    packed = pack([torch.randint(0, 31, (n,), generator=generator).tolist() for n in lengths], parents)
    borders, ids = packed.cu_seqlens_S1.tolist(), packed.input_ids_M.tolist()
    assert packed.layout.rows == tuple((borders[s], borders[s + 1]) for s in (0, 3, 5))
    with torch.no_grad():
        got_M, _ = packed_logprobs(model, packed)
        for s, parent in enumerate(parents):
            path = [
                *(ids[borders[parent] : borders[parent + 1]] if parent >= 0 else []),
                *ids[borders[s] : borders[s + 1]],
            ]
            logits_LV = model(input_ids=torch.tensor([path])).logits[0, :-1].float()
            want_L = logits_LV.log_softmax(-1).gather(1, torch.tensor(path)[1:, None])[:, 0]
            tail = min(lengths[s], len(want_L))
            torch.testing.assert_close(
                got_M[borders[s + 1] - tail : borders[s + 1]].float(), want_L[-tail:], atol=allowed, rtol=0
            )


def test_the_last_layer_skips_unread_positions(monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE, num_key_value_heads=4, head_dim=8)).double()
    packed = pack([[t % 31 for t in range(n)] for n in (60, 20)], [-1, -1])
    needed_M = torch.arange(80) >= 70
    seen = []
    choose_forward(model)  # the check has forward passes of its own
    model.model.layers[-1].mlp.gate_proj.register_forward_hook(lambda _, given, out: seen.append(given[0].shape[1]))
    outputs = []
    for share in (0.9, 0.0):  # leaving out, and not
        monkeypatch.setattr("learning.models.forwards.WORTH_LEAVING_OUT", share)
        model.zero_grad()
        logp_M, _ = packed_logprobs(model, packed, needed_M=needed_M)
        logp_M.sum().backward()
        outputs.append((logp_M.detach(), [p.grad.clone() for p in model.parameters()]))
    assert seen == [10, 80]
    assert torch.equal(outputs[0][0] != 0, needed_M)
    torch.testing.assert_close(outputs[0][0], outputs[1][0], atol=1e-12, rtol=0)
    for ours, all_of_it in zip(outputs[0][1], outputs[1][1], strict=True):
        torch.testing.assert_close(ours, all_of_it, atol=1e-12, rtol=0)


def test_short_rows_stay_together():
    assert segments.make_layout([0, 20, 40, 60], [-1, -1, -1], on_cpu=True).rows == ()
    long = cpu_attention.SHORTEST
    assert segments.make_layout([0, long], [-1], on_cpu=True).rows == ((0, long),)
    assert segments.make_layout([0, long], [-1]).rows == ()
