"""Every optimiser against its formula, computed apart in float64 (Muon's products in bfloat16, as they are defined)."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from learning.models.checkpoint import get_optimizer_state, get_trained_weights, load_training, save_training
from learning.models.forwards import find_blocks
from learning.models.optimize import make_optimizer
from learning.models.optimizers import list_block_matrices, orthogonalise
from schemas.errors import StepError
from schemas.training import Training

RATE, DECAY, BETAS, STEPS = 0.03, 0.1, (0.8, 0.95), 5
OPTIMIZERS = ("adamw", "adafactor", "lion", "muon")


def make_model():
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen3Config(vocab_size=11, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, **shape)
    return AutoModelForCausalLM.from_config(config)


def settings(name):
    betas = {} if name == "adafactor" else {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1]}
    return Training(optim=name, learning_rate=RATE, weight_decay=DECAY, **betas)


def train(model, optimizer, steps):
    for step in steps:
        tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        yield {name: p.grad.double() for name, p in model.named_parameters()}
        optimizer.step()


def adamw(weight, gradients, decay):
    first = second = torch.zeros_like(weight)
    for t, g in enumerate(gradients, 1):
        first, second = BETAS[0] * first + (1 - BETAS[0]) * g, BETAS[1] * second + (1 - BETAS[1]) * g * g
        unbiased = (first / (1 - BETAS[0] ** t)) / ((second / (1 - BETAS[1] ** t)).sqrt() + 1e-8)
        weight = weight - RATE * decay * weight - RATE * unbiased
    return weight


def lion(weight, gradients, decay):
    moment = torch.zeros_like(weight)
    for g in gradients:
        direction = (BETAS[0] * moment + (1 - BETAS[0]) * g).sign()
        moment = BETAS[1] * moment + (1 - BETAS[1]) * g
        weight = weight - RATE * (direction + decay * weight)
    return weight


def adafactor(weight, gradients, decay):
    """Algorithms 4 and 5 of the paper, with the relative step min(rate, 1/√t) and β̂ = 1 − t^-0.8."""
    rows = columns = second = 0.0
    tiny = torch.finfo(torch.float32).eps
    for t, g in enumerate(gradients, 1):
        kept = 1 - t**-0.8
        scale = max(1e-3, float(weight.square().mean().sqrt())) * min(RATE, 1 / math.sqrt(t))
        weight = weight * (1 - RATE * decay)
        if g.ndim > 1:
            rows = kept * rows + (1 - kept) * g.square().mean(1, keepdim=True)
            columns = kept * columns + (1 - kept) * g.square().mean(0, keepdim=True)
            estimate = rows @ columns / rows.mean().clamp(min=tiny)
        else:
            estimate = second = kept * second + (1 - kept) * g.square()
        update = g / estimate.clamp(min=tiny**2).sqrt()
        weight = weight - scale * update / max(1.0, float(update.square().mean().sqrt()))
    return weight


def muon(weight, gradients, decay):
    moment = torch.zeros_like(weight)
    for g in gradients:
        moment = 0.95 * moment + 0.05 * g
        x = (0.05 * g + 0.95 * moment).bfloat16()
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            a = x @ x.T
            x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.775, alpha=2.0315), x, beta=3.4445)
        x = (x.T if tall else x).double()
        weight = weight * (1 - RATE * decay) - RATE * 0.2 * math.sqrt(max(x.shape)) * x
    return weight


def expected(name, weight, gradients, in_blocks):
    decay = DECAY if weight.ndim >= 2 else 0.0
    formulas = {"adamw": adamw, "adafactor": adafactor, "lion": lion, "muon": muon if in_blocks else adamw}
    return formulas[name](weight, gradients, decay)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_formula(name):
    model = make_model()
    before = {n: p.detach().double() for n, p in model.named_parameters()}
    gradients = list(train(model, make_optimizer(model, settings(name)), range(STEPS)))
    matrices = {id(p) for p in list_block_matrices(find_blocks(model))}
    assert len(matrices) == 2 * 7
    for n, parameter in model.named_parameters():
        series = [one[n] for one in gradients]
        wanted = expected(name, before[n], series, id(parameter) in matrices)
        moved = float((wanted - before[n]).abs().max())
        # Muon rounds to bfloat16, so that a last digit of its input may become visible.
        bound = (2e-2 if name == "muon" else 1e-4) * moved + 1e-6
        # A sign (Lion) is uncertain where what it is taken of is rounding; such elements are few.
        far = ((parameter.double() - wanted).abs() > bound).double().mean()
        assert float(far) <= (0.002 if name == "lion" else 0.0), n


def test_an_orthogonalised_matrix_has_the_directions_and_singular_values_near_one():
    matrix = torch.randn(12, 20, generator=torch.Generator().manual_seed(1))
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    change = orthogonalise(matrix, 1.0) / (-0.2 * math.sqrt(20))
    weights = torch.einsum("mi,mn,in->i", u, change, vt)
    assert float(weights.min()) > 0.6
    assert float(weights.max()) < 1.3
    torch.testing.assert_close(change, u @ weights.diag() @ vt, atol=0.02, rtol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_optimiser_continues_bit_identical(name, tmp_path):
    model = make_model()
    optimizer = make_optimizer(model, settings(name))
    list(train(model, optimizer, range(3)))
    save_training(tmp_path, 3, get_trained_weights(model), optimizer, {})
    list(train(model, optimizer, range(3, 6)))
    again = make_model()
    other = make_optimizer(again, settings(name))
    assert load_training(tmp_path, get_trained_weights(again), other) == (3, {})
    list(train(again, other, range(3, 6)))
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_lion_keeps_one_moment_and_adafactor_only_factors_of_matrices():
    sizes = {}
    for name in OPTIMIZERS:
        model = make_model()
        optimizer = make_optimizer(model, settings(name))
        list(train(model, optimizer, range(1)))
        tensors, _ = get_optimizer_state(optimizer)
        sizes[name] = sum(t.numel() for t in tensors.values() if t.ndim)
    model = make_model()
    total, matrices = (
        sum(p.numel() for p in ps) for ps in (model.parameters(), list_block_matrices(find_blocks(model)))
    )
    small = [p for p in model.parameters() if p.ndim < 2]
    factors = sum(sum(p.shape) for p in model.parameters() if p.ndim == 2) + sum(p.numel() for p in small)
    assert sizes == {"adamw": 2 * total, "lion": total, "muon": 2 * total - matrices, "adafactor": factors}


def test_eight_bit_state_is_near_the_32_bit_state_and_resumes_bit_identical(tmp_path):
    pytest.importorskip("bitsandbytes")
    runs = {}
    for name in ("adamw", "adamw_8bit"):
        torch.manual_seed(0)
        model = torch.nn.Linear(128, 64, bias=False)
        target = torch.randn(32, 64)
        inputs = torch.randn(32, 128)
        optimizer = make_optimizer(model, Training(optim=name, learning_rate=1e-2))

        def step(model=model, optimizer=optimizer, inputs=inputs, target=target):
            optimizer.zero_grad()
            (model(inputs) - target).square().mean().backward()
            optimizer.step()

        for _ in range(6):
            step()
        runs[name] = (model, optimizer, step)
    (plain, *_), (model, optimizer, step) = runs.values()
    state = optimizer.state[model.weight]
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8
    assert float((plain.weight - model.weight).detach().abs().mean()) < 0.1 * 6e-2
    save_training(tmp_path, 6, get_trained_weights(model), optimizer, {})
    step()
    whole = model.weight.detach().clone()
    again = make_optimizer(model, Training(optim="adamw_8bit", learning_rate=1e-2))
    load_training(tmp_path, get_trained_weights(model), again)
    again.zero_grad()
    torch.manual_seed(0)
    torch.nn.Linear(128, 64, bias=False)
    target, inputs = torch.randn(32, 64), torch.randn(32, 128)
    (model(inputs) - target).square().mean().backward()
    again.step()
    assert torch.equal(model.weight, whole)


def test_eight_bit_state_without_bitsandbytes_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(StepError, match="optim: lion_8bit needs bitsandbytes, which is not installed here"):
        make_optimizer(make_model(), Training(optim="lion_8bit"))
