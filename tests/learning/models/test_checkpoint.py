import random

import numpy as np
import pytest
import torch
from torch import nn

from learning.models import checkpoint
from learning.models.checkpoint import (
    get_optimizer_state,
    load_latest,
    load_optimizer_state,
    load_weights,
    save_checkpoint,
)
from learning.models.optimize import clip_gradients, make_optimizer
from learning.parallel.random_states import get_rng_state, set_rng_state
from schemas.errors import StepError
from schemas.training import Training


def save(folder, step):
    save_checkpoint(folder, step, {"a/x": torch.full((3,), step)}, {"told": [step, 0.1 + 0.2, None]})


def test_saved_values_are_restored(tmp_path):
    assert load_latest(tmp_path / "nothing") is None
    save(tmp_path, 7)
    step, tensors, state = load_latest(tmp_path)
    assert (step, state) == (7, {"told": [7, 0.1 + 0.2, None]})
    assert torch.equal(tensors["a/x"], torch.full((3,), 7))


def test_the_last_two_are_kept(tmp_path):
    for step in (5, 50, 9999, 100000):
        save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00009999", "step-00100000"]
    assert load_latest(tmp_path)[0] == 100000


def test_files_of_a_killed_process_are_ignored(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".writing-1").mkdir()
    (tmp_path / ".writing-1" / "tensors.safetensors").write_bytes(b"half")
    assert load_latest(tmp_path)[0] == 1
    save(tmp_path, 2)
    assert load_latest(tmp_path)[0] == 2


@pytest.mark.parametrize("harm", ["cut", "flip", "no state", "bad json", "no tensors", "list"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, harm):
    save(tmp_path, 1)
    save(tmp_path, 2)
    tensors, state = tmp_path / "step-00000002" / "tensors.safetensors", tmp_path / "step-00000002" / "state.json"
    data = tensors.read_bytes()
    {
        "cut": lambda: tensors.write_bytes(data[:-1]),
        "flip": lambda: tensors.write_bytes(data[:-1] + bytes([data[-1] ^ 1])),
        "no state": state.unlink,
        "bad json": lambda: state.write_text(state.read_text()[:-3]),
        "no tensors": tensors.unlink,
        "list": lambda: state.write_text("[]"),
    }[harm]()
    assert load_latest(tmp_path)[0] == 1


def test_weights_of_another_model_are_refused_by_name():
    here = {"w": torch.zeros(2, 3), "b": torch.zeros(3)}
    load_weights(here, {"w": torch.ones(2, 3), "b": torch.ones(3)})
    assert float(here["w"].sum()) == 6
    with pytest.raises(StepError, match=r"w has shape \(3, 2\) in the checkpoint and \(2, 3\) here"):
        load_weights(here, {"w": torch.ones(3, 2), "b": torch.ones(3)})
    with pytest.raises(StepError, match="b has shape none in the checkpoint"):
        load_weights(here, {"w": torch.ones(2, 3)})


def trained(steps, model, optimizer):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_optimiser_and_random_states_continue_to_the_same_bits(tmp_path):
    torch.manual_seed(0)
    training = Training(learning_rate=0.1, weight_decay=0.1)
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, training)
    trained(3, model, optimizer)
    tensors, groups = get_optimizer_state(optimizer)
    rng_tensors, rng_rest = get_rng_state()
    weights = dict(model.named_parameters())
    save_checkpoint(
        tmp_path, 3, {**weights, **{f"o/{k}": v for k, v in tensors.items()}, **rng_tensors}, [groups, rng_rest]
    )
    drawn = (random.random(), np.random.rand(), trained(3, model, optimizer))  # noqa: NPY002

    _, kept, (groups, rng_rest) = load_latest(tmp_path)
    again = nn.Linear(3, 2)
    other = make_optimizer(again, training)
    load_weights(dict(again.named_parameters()), {k: kept[k] for k in weights})
    load_optimizer_state(other, {k[2:]: v for k, v in kept.items() if k.startswith("o/")}, groups)
    set_rng_state({k: kept[k] for k in rng_tensors}, rng_rest)
    repeated = (random.random(), np.random.rand(), trained(3, again, other))  # noqa: NPY002
    assert repeated[:2] == drawn[:2]
    assert all(torch.equal(a, b) for a, b in zip(repeated[2], drawn[2], strict=True))


def test_an_optimiser_of_other_shapes_is_refused():
    one, other = nn.Linear(3, 2), nn.Linear(4, 2)
    first, second = make_optimizer(one, Training()), make_optimizer(other, Training())
    trained(1, one, first)
    with pytest.raises(StepError, match=r"shape \(2, 3\), here it is \(2, 4\)"):
        load_optimizer_state(second, *get_optimizer_state(first))


def test_decay_is_on_matrices_only():
    model = nn.Linear(3, 2)
    groups = make_optimizer(model, Training(weight_decay=0.5)).param_groups
    decays = {p.ndim: group["weight_decay"] for group in groups for p in group["params"]}
    assert decays == {2: 0.5, 1: 0.0}


def test_clipping_keeps_the_direction_and_reports_the_norm_before():
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert clip_gradients(model, None) == 5.0
    assert clip_gradients(model, 1.0) == 5.0
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.6, 0.8]]))
    model.weight.grad = torch.tensor([[3.0, torch.inf]])
    with pytest.raises(StepError, match="gradient is not finite"):
        clip_gradients(model, 1.0)


def test_another_version_of_the_code_does_not_read_a_checkpoint(tmp_path, monkeypatch, capsys):
    save_checkpoint(tmp_path, 1, {"a": torch.ones(2)}, {})
    monkeypatch.setattr(checkpoint, "VERSION", "another")
    assert load_latest(tmp_path) is None
    assert "its seal is not the one" in capsys.readouterr().out
