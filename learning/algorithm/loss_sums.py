"""Metrics of the loss over a batch: sums over tokens, added up over micro-batches and ranks.

Shapes: T sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from learning.batch.loss_columns import ColumnView
from learning.parallel.group import Group


@dataclass
class LossSums:
    """Sums over tokens, added up micro-batch by micro-batch; `gap` is a maximum.

    `names` are those of the further terms of the loss, `parts` their weighted sums and the sums of their weights.
    """

    names: Sequence[str] = ()
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)
    tokens: int = 0
    clipped: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    kl_to_sampler: float = 0.0
    gap: float = 0.0

    def add(self, columns: ColumnView, first: bool) -> None:
        """Add one micro-batch; `first`: the policy has not been trained on this batch yet."""
        own_T = ~columns["external_T"]
        lp_T, behav_T = columns["lp_T"], columns["lp_behav_T"]
        active_T = (columns["w_T"] != 0) & (columns["advantage_T"] != 0)
        self.tokens += len(lp_T)
        self.clipped += float((active_T & (columns["policy_grad_T"] == 0)).sum())
        self.entropy += float(columns["entropy_T"].sum())
        self.kl_to_sampler += float(_k3(lp_T[own_T], behav_T[own_T]).sum())
        if "lp_ref_T" in columns:
            self.kl += float(_k3(lp_T, columns["lp_ref_T"]).sum())
        for i, (name, part) in enumerate(zip(self.names, columns["parts"], strict=True)):
            total, weight = self.parts.get(name, (0.0, 0.0))
            self.parts[name] = (total + part, weight + float(columns[f"w.{i}_T"].sum()))
        fresh_T = own_T & (columns["source_T"] == 0) & (columns["version_T"] == columns["step"])
        if first and bool(fresh_T.any()):
            self.gap = max(self.gap, float((lp_T - behav_T)[fresh_T].abs().max()))

    def over_ranks(self, group: Group) -> "LossSums":
        """Return the sums over the micro-batches of all ranks."""
        numbers = [float(self.tokens), self.clipped, self.entropy, self.kl, self.kl_to_sampler]
        for name in self.names:
            numbers += self.parts.get(name, (0.0, 0.0))
        summed = iter(group.add_up(numbers))
        return LossSums(
            self.names,
            tokens=int(next(summed)),
            clipped=next(summed),
            entropy=next(summed),
            kl=next(summed),
            kl_to_sampler=next(summed),
            parts={name: (next(summed), next(summed)) for name in self.names},
            gap=max(group.gather(self.gap)),
        )

    def means(self, has_reference: bool) -> dict[str, float]:
        """Return metrics: means over tokens."""
        n = max(self.tokens, 1)
        metrics = {
            "clip_fraction": self.clipped / n,
            "entropy": self.entropy / n,
            "kl_to_sampler": self.kl_to_sampler / n,
        }
        metrics |= {f"loss/{name}": total / weight for name, (total, weight) in self.parts.items() if weight}
        return {**metrics, "logprob_gap": self.gap, **({"kl": self.kl / n} if has_reference else {})}


def _k3(lp_T: Tensor, other_T: Tensor) -> Tensor:
    """Return an estimate of KL(policy ‖ other) at each token."""
    r_T = (other_T - lp_T).clamp(-20, 20)
    return r_T.expm1() - r_T
