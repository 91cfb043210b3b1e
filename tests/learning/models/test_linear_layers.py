import copy
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config

from learning.models import forwards
from learning.models.forwards import (
    _in_bfloat16,
    _replaces_forward,
    agrees,
    describe_linear_layers,
    multiply,
    multiply_in_pieces,
    multiply_transposed,
    use_onednn,
)
from learning.models.packed import pack, packed_logprobs

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
WIDE = {"hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def gains(monkeypatch):
    """A machine on which oneDNN is faster, whatever this one is; returns the shapes that oneDNN multiplies."""
    monkeypatch.setattr(forwards, "gains_from_onednn", lambda: True)
    shapes = []
    original = forwards._onednn

    def note(rows_BK, weight_NK, bias_N=None):
        shapes.append((tuple(rows_BK.shape), tuple(weight_NK.shape)))
        return original(rows_BK, weight_NK, bias_N)

    monkeypatch.setattr(forwards, "_onednn", note)
    return shapes


def make_layer(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias)


# 64 and 512: one piece; 700: 512, 128 and 60 rows by torch; 50: torch alone.
@pytest.mark.parametrize("count", [50, 64, 512, 700])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_those_of_the_formula(gains, count, bias):
    layer = make_layer(256, 400, bias)
    exact = copy.deepcopy(layer).double()
    use_onednn(layer)
    gains.clear()
    rows = torch.randn(2, count // 2, 256)
    ours, theirs = rows.clone().requires_grad_(), rows.double().requires_grad_()
    weight = torch.randn(2, count // 2, 400)
    out, want = layer(ours), exact(theirs)
    torch.testing.assert_close(out.double(), want, atol=2e-6, rtol=0)
    out.backward(weight)
    want.backward(weight.double())
    parameters = zip(layer.parameters(), exact.parameters(), strict=True)
    pairs = [(ours.grad, theirs.grad), *((mine.grad, other.grad) for mine, other in parameters)]
    for mine, other in pairs:
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), other, atol=1e-5 * float(other.abs().max()), rtol=0)
    pieces = {50: [], 64: [64], 512: [512], 700: [512, 128]}[count]
    assert [rows[0] for rows, _ in gains[: len(pieces)]] == pieces
    assert len(gains) == 3 * len(pieces), "forward, rows and weight"


def test_pieces_have_few_sizes(gains):
    layer = make_layer(256, 256)
    use_onednn(layer)
    gains.clear()
    with torch.no_grad():
        for count in range(500, 3000, 83):
            layer(torch.randn(count, 256))
    assert {rows for rows, _ in gains} <= {(512, 256), (128, 256), (64, 256)}


def test_frozen_weights_get_no_gradient_and_rows_that_need_none_neither(gains):
    layer = make_layer(256, 256)
    use_onednn(layer)
    layer.requires_grad_(False)
    rows = torch.randn(128, 256, requires_grad=True)
    gains.clear()
    layer(rows).sum().backward()
    assert layer.weight.grad is None
    assert rows.grad is not None
    assert len(gains) == 2
    layer.requires_grad_(True)
    gains.clear()
    layer(rows.detach()).sum().backward()
    assert layer.weight.grad is not None
    assert len(gains) == 2


def test_what_onednn_does_not_compute_is_left_to_torch(gains):
    small, double, low = make_layer(96, 256), make_layer(256, 256).double(), make_layer(256, 256).bfloat16()
    for layer in (small, double, low):
        use_onednn(layer)
        layer(torch.randn(512, layer.in_features, dtype=layer.weight.dtype))
    assert not gains, "small, float64 and bfloat16 weights"
    layer = make_layer(256, 256)
    use_onednn(layer)
    gains.clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(512, 256)).dtype == torch.bfloat16
    layer.double()(torch.randn(512, 256, dtype=torch.float64))
    assert not gains, "autocast, and a layer that was converted afterwards"


def test_a_layer_with_wrong_products_keeps_those_of_torch(monkeypatch, gains):
    right = forwards._onednn
    layer = make_layer(256, 320)
    assert agrees(layer)
    for wrong in ((64, 256), (64, 320), (320, 64)):  # forward, gradient of rows, gradient of the weight

        def spoil(rows_BK, weight_NK, bias_N=None, wrong=wrong):
            out_BN = right(rows_BK, weight_NK, bias_N)
            return out_BN + 1e-3 * out_BN.abs().max() if tuple(rows_BK.shape) == wrong else out_BN

        monkeypatch.setattr(forwards, "_onednn", spoil)
        use_onednn(layer)
        assert not _replaces_forward(layer, multiply_in_pieces)
    monkeypatch.setattr(forwards, "_onednn", right)
    use_onednn(layer)
    assert _replaces_forward(layer, multiply_in_pieces)


def test_a_step_says_which_layers_multiply_by_onednn(gains):
    model = torch.nn.Sequential(make_layer(256, 256), make_layer(96, 256))
    assert describe_linear_layers(model) == {}
    use_onednn(model)
    note = "1 of 2 by oneDNN (agrees with torch on their weights)"
    assert describe_linear_layers(model) == {"linear_layers": note}
    assert describe_linear_layers(model.double()) == {}
    model.float().forward = MethodType(_in_bfloat16, model)
    assert describe_linear_layers(model) == {}


def test_weights_that_are_not_numbers_keep_torch_products(gains):
    layer = make_layer(256, 256)
    layer.weight.data.fill_(torch.nan)
    use_onednn(layer)
    assert not _replaces_forward(layer, multiply_in_pieces)


def test_a_model_has_the_same_log_probabilities_and_gradients(gains):
    torch.manual_seed(0)
    config = Qwen3Config(**WIDE, head_dim=48, vocab_size=300, num_hidden_layers=2)
    plain = AutoModelForCausalLM.from_config(config).eval()
    fast = copy.deepcopy(plain)
    use_onednn(fast)
    again = copy.deepcopy(fast)
    generator = torch.Generator().manual_seed(1)
    segments = [torch.randint(0, 300, (n,), generator=generator).tolist() for n in (40, 100, 60)]
    packed, results = pack(segments, [-1, 0, 0]), []
    gains.clear()
    for model in (plain, fast, again):
        lp_M = packed_logprobs(model, packed)[0]
        lp_M.sum().backward()
        results.append((lp_M.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    assert gains
    for lp_M, grad in results[1:]:
        torch.testing.assert_close(lp_M, results[0][0], atol=1e-5, rtol=0)
        torch.testing.assert_close(grad, results[0][1], atol=1e-5 * float(results[0][1].abs().max()), rtol=0)
    fast.lm_head.weight.data.zero_()
    assert again.lm_head.weight.abs().sum() > 0
    torch.testing.assert_close(packed_logprobs(again, packed)[0].detach(), results[2][0], atol=0, rtol=0)


def test_products_are_those_of_torch_for_rows_without_pieces():
    rows_BK, weight_NK, grad_BN = torch.randn(30, 256), torch.randn(200, 256), torch.randn(30, 200)
    torch.testing.assert_close(multiply(rows_BK, weight_NK), F.linear(rows_BK, weight_NK), atol=0, rtol=0)
    torch.testing.assert_close(multiply_transposed(grad_BN, rows_BK), grad_BN.t() @ rows_BK, atol=0, rtol=0)


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("count", [1, 33, 100, 333, 1000, 2958])
def test_padding_changes_no_bit_in_bfloat16(count, mixed):
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no instructions for bfloat16")
    layer, dtype = make_layer(96, 64), torch.float32 if mixed else torch.bfloat16
    layer = layer.to(dtype)
    plain = copy.deepcopy(layer)
    forwards.bound_row_counts(layer)
    rows, weight = torch.randn(1, count, 96).to(dtype), torch.randn(1, count, 64)
    results = []
    for module in (layer, plain):
        given = rows.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            out = module(given)
        (out.float() * weight).sum().backward()
        results.append([out, given.grad, *(p.grad for p in module.parameters())])
    assert results[0][0].dtype == torch.bfloat16
    assert all(torch.equal(mine, other) and mine.dtype == other.dtype for mine, other in zip(*results, strict=True))


def test_products_in_bfloat16_see_few_numbers_of_rows(monkeypatch):
    layer, seen = make_layer(96, 64), set()
    forwards.bound_row_counts(layer)
    original = F.linear

    def note(rows, weight, bias=None):
        seen.add(rows.shape[0])
        return original(rows, weight, bias)

    monkeypatch.setattr(forwards.F, "linear", note)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for count in range(2049, 4097):
            assert forwards._pad(count) - count <= count / 16
        for count in range(2049, 4097, 41):
            assert layer(torch.randn(count, 96)).shape == (count, 64)
    assert seen == set(range(2048 + 128, 4097, 128))
    seen.clear()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for count in range(1, 65):
            layer(torch.randn(count, 96))
    assert seen == {*range(1, 33), 48, 64}  # steps of decoding as they are


def test_other_precisions_are_not_padded(monkeypatch):
    layer = make_layer(96, 64)
    forwards.bound_row_counts(layer)
    monkeypatch.setattr(forwards._Padded, "apply", None)
    assert layer(torch.randn(100, 96)).dtype == torch.float32
    assert layer.double()(torch.randn(100, 96).double()).dtype == torch.float64
