"""What golden tests of presets share: a hand-made batch in float64, and the loss of a preset on it."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
import torch
import yaml

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped, with_factors, with_weights
from learning.batch.batch_layout import single_turn
from learning.samples.engine_protocol import Generation
from schemas.stages.rl import Rl

PRESETS = Path(__file__).parents[2] / "recipes" / "algorithms"
LENGTHS = [[3, 7, 1, 4], [2, 2, 6, 5], [4, 3, 4, 2], [5, 1, 2, 9]]
REWARDS = [[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.5], [0.1, 0.1, 0.1, 0.1], [1.0, 0.0, 0.0, 2.0]]
SECOND = [[0.3, 0.1, 0.2, 0.2], [0.5, 0.5, 0.5, 0.5], [1.0, 2.0, 3.0, 4.0], [0.0, 0.1, 0.0, 0.0]]
COUNTS = [n for ns in LENGTHS for n in ns]


@dataclass(frozen=True)
class Golden:
    """Four groups of four ragged completions, one of them without variance; policies differ at every token."""

    max_length: int = 9
    lengths: list = field(default_factory=lambda: LENGTHS)
    rewards: list = field(default_factory=lambda: REWARDS)
    second: list = field(default_factory=lambda: SECOND)
    counts: list = field(default_factory=lambda: COUNTS)

    @cached_property
    def columns(self):
        """Token columns (T,); `lp` is a leaf."""
        generator = torch.Generator().manual_seed(3)

        def noise():
            return torch.randn(sum(COUNTS), generator=generator, dtype=torch.float64)

        logit = noise()
        prox = logit + 0.5 * noise()
        made = {"behav": logit, "prox": prox, "lp": prox + 0.3 * noise(), "ref": logit + 0.4 * noise()}
        made = {name: torch.nn.functional.logsigmoid(column) for name, column in made.items()}
        made |= {"entropy": noise().abs() + 0.1, "collision": noise().sigmoid(), "value": 0.3 * noise()}
        made["lp"].requires_grad_()
        return made

    def of(self, column):
        """A token column, path by path."""
        return self.columns[column].split(self.counts)

    @cached_property
    def batch(self):
        """The record, with everything that does not change."""
        behav = iter(self.of("behav"))
        groups = [[Generation([7] * n, next(behav).tolist(), "stop") for n in ns] for ns in self.lengths]
        made = single_turn([[1, 2], [3], [4, 5, 6], [8]], groups)
        flat, second = (torch.tensor(r, dtype=torch.float64).flatten() for r in (self.rewards, self.second))
        made = made.with_paths(reward=flat, **{"score:exact": flat, "score:format": second})
        columns = {"lp_prox": "prox", "lp_ref": "ref", "collision_prox": "collision", "value": "value"}
        made = made.replaced(entropy_behav=self.columns["entropy"])
        return made.with_tokens(**{name: self.columns[of] for name, of in columns.items()})

    def stage(self, name, **more):
        """An rl stage with the preset."""
        preset = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
        base = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1}
        return Rl.model_validate({**base, **preset, **more})

    def ours(self, name, batch=None, **more):
        """The batch with its advantages, the loss and its gradient by the tokens' log-probabilities."""
        algorithm = bind_algorithm(self.stage(name, **more), {})
        made = with_dropped(self.batch if batch is None else batch, False)
        made = with_advantages(algorithm, made, 0, states={}, rows=[])
        made = with_weights(algorithm, with_factors(algorithm, made, 0, seed=5), 0, self.max_length)
        columns = view_columns(made, {"lp": self.columns["lp"], "entropy": self.columns["entropy"]})
        columns["log_ratio_T"] = algorithm.ratio.ask(0, columns)
        factor = columns["factor_T"] if algorithm.importance_correction else 1.0
        loss = (algorithm.policy_loss.ask(0, columns) * factor * columns["w_T"]).sum()
        for i, term in enumerate(algorithm.loss_terms):
            loss = loss + (term.function.ask(0, columns) * columns[f"w.{i}_T"]).sum()
        return made, loss, torch.autograd.grad(loss, self.columns["lp"])[0]

    def agrees(self, name, advantages, loss, batch=None, **more):
        """Assert that the preset has these advantages (a number or a list per path), this loss and its gradient."""
        made, got, grad = self.ours(name, batch, **more)
        per_token = [a if isinstance(a, list) else [a] * n for a, n in zip(advantages, self.counts, strict=True)]
        want = torch.tensor([a for path in per_token for a in path], dtype=torch.float64)
        torch.testing.assert_close(made.sampled("advantage"), want, atol=1e-12, rtol=0)
        torch.testing.assert_close(got, loss, atol=1e-12, rtol=0)
        torch.testing.assert_close(grad, torch.autograd.grad(loss, self.columns["lp"])[0], atol=1e-12, rtol=0)
        assert float(grad.abs().max()) > 1e-4


@pytest.fixture
def golden():
    """The hand-made batch and the presets' losses on it."""
    return Golden()
