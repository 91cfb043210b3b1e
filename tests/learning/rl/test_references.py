"""References that follow the trained policy."""

from pathlib import Path
from types import SimpleNamespace

import torch

from learning.algorithm.composition import Algorithm
from learning.lookup import Bound
from learning.rl.references import References
from schemas.stages.rl import ReferenceSpec


def stage(**specs):
    return SimpleNamespace(reference=None, references={n: ReferenceSpec.model_validate(s) for n, s in specs.items()})


def asking(*names):
    asks = ", ".join(f"lp_{name}_T" for name in names)
    part = eval(f"lambda lp_T, {asks}: lp_T")
    return Algorithm((), Bound("r", part, {}), Bound("s", part, {}), Bound("w", len, {}))


def first(model):
    return next(iter(model.parameters())).detach().clone()


def test_a_reference_is_fixed_copied_or_averaged_when_it_is_due(tiny_policy):
    specs = stage(prev={"sync_steps": 2}, mean={"sync_steps": 1, "mixup_alpha": 0.25}, idle={"sync_steps": 1})
    references = References(specs, asking("ref", "prev", "mean"), tiny_policy, {"unused": Path()})
    assert set(references.models) == {"ref", "prev", "mean"}  # nobody asks for `idle`
    start = first(tiny_policy.model)
    wanted = start.clone()
    for step in range(3):
        with torch.no_grad():
            for parameter in tiny_policy.model.parameters():
                parameter.add_(1.0)
        references.refresh(tiny_policy, step)
        wanted = 0.75 * wanted + 0.25 * (start + step + 1)
        torch.testing.assert_close(first(references.models["mean"]), wanted, atol=1e-6, rtol=0)
        prev = start if step == 0 else start + 2
        torch.testing.assert_close(first(references.models["prev"]), prev, atol=1e-6, rtol=0)
        assert torch.equal(first(references.models["ref"]), start)
    assert {name.partition("/")[0] for name in references.tensors()} == {"prev", "mean"}
