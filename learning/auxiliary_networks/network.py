"""The networks behind auxiliaries: a policy's body with values, or a language model compared with its own start.

Values are of states, tokens, actions, turns or completions; a language model's are its log-ratios to where it started.
Those of turns, and those log-ratios, add up to the value of their completion. The value of a state is read where the
token after it is predicted, so that observations and given beginnings have no value of their own; that of a token is
read at the token. Heads are kept in float32 at least.

Shapes: M packed tokens, T sampled tokens, P paths, X what is valued (T or P), H heads, C width, V vocabulary.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from learning.batch.batch import Batch
from learning.batch.columns import find_turn_ends
from learning.models.forwards import unwrap
from learning.models.policy import Policy
from learning.models.shared_prefixes import shared_hidden, shared_statistics
from schemas.errors import StepError

Head = Literal["state", "token", "action", "path", "turns"]
SPREAD = 0.1
"""Standard deviation of the first values of several heads, which must differ to stay apart; one alone starts at 0."""
LOGITS_PER_CHUNK = 1 << 24
"""Largest number of action values alive at once."""


@dataclass
class Values:
    """The trained values (X, H), and `<suffix>` columns at tokens and at ends of paths for other parts."""

    values_XH: Tensor
    tokens: dict[str, Tensor] = field(default_factory=dict)
    ends: dict[str, Tensor] = field(default_factory=dict)


class Valued(nn.Module):
    """A body with values; `head` says what is valued."""

    def __init__(self, body: PreTrainedModel, reads: Head, heads: int, seed: int, name: str = "critic"):
        super().__init__()
        self.body, self.reads, self.name = body.requires_grad_(True), reads, name
        text = body.config.get_text_config()
        width = text.hidden_size
        precision = torch.promote_types(body.dtype, torch.float32)
        count = text.vocab_size if reads == "action" else heads
        self.head = nn.Linear(width, count, device=body.device, dtype=precision)
        nn.init.zeros_(self.head.bias)
        nn.init.zeros_(self.head.weight)
        if heads > 1:
            drawn = torch.randn(heads, width, generator=torch.Generator().manual_seed(seed))
            self.head.weight.data.copy_(drawn * SPREAD / width**0.5)

    def forward(self, batch: Batch, whole: bool = False) -> Values:
        """Return the values of a batch; `whole` adds those of states after paths and over the vocabulary."""
        packed = batch.packed.to(self.head.weight.device)
        hidden_MC = shared_hidden(self.body, packed).to(self.head.weight.dtype)
        if self.reads == "path":
            return Values(self.head(_rows(hidden_MC, find_path_ends(batch))))
        if self.reads == "token":
            return Values(self.head(_rows(hidden_MC, batch.sampled_T)))
        if self.reads == "turns":
            return self._turns(_rows(hidden_MC, batch.sampled_T), batch)
        source_T = packed.source_M.cpu()[batch.sampled_T]
        if bool((source_T < 0).any()):
            raise StepError(
                f"{self.name}: a completion without a prompt has no state to value; give every problem a prompt"
            )
        rows_TC, rows_PC = _rows(hidden_MC, source_T), _rows(hidden_MC, find_path_ends(batch)) if whole else None
        if self.reads == "state":
            return Values(self.head(rows_TC), ends={} if rows_PC is None else {"": self.head(rows_PC)})
        return self._actions(rows_TC, rows_PC, packed.input_ids_M[batch.sampled_T.to(hidden_MC.device)])

    def _turns(self, rows_TC: Tensor, batch: Batch) -> Values:
        """Return sums over the turns of each path (P, H), of a value that each turn has at its last token."""
        ends_T = find_turn_ends(batch.path_T, batch.sampled("turn")).to(rows_TC.device)
        value_TH = self.head(rows_TC) * ends_T[:, None]
        sums_PH = value_TH.new_zeros(batch.num_paths, value_TH.shape[1])
        return Values(sums_PH.index_add(0, batch.path_T.to(rows_TC.device), value_TH), {"": value_TH})

    def _actions(self, rows_TC: Tensor, rows_PC: Tensor | None, ids_T: Tensor) -> Values:
        """Return action values; only the sampled actions' rows of the head need a gradient."""
        weight_TC, bias_T = self.head.weight[ids_T], self.head.bias[ids_T]
        values = Values(((rows_TC * weight_TC).sum(-1) + bias_T)[:, None])
        if rows_PC is not None:
            for into, rows_XC in ((values.tokens, rows_TC), (values.ends, rows_PC)):
                into["_max"] = self._best(rows_XC)
                into["_mean"] = rows_XC @ self.head.weight.mean(0) + self.head.bias.mean()
        return values

    @torch.no_grad()
    def _best(self, rows_XC: Tensor) -> Tensor:
        """Return the highest action value after each row (X,), some rows at a time."""
        size = max(1, LOGITS_PER_CHUNK // self.head.weight.shape[0])
        return torch.cat([self.head(rows).amax(-1) for rows in rows_XC.split(size)])


class Likelihood(nn.Module):
    """A language model; a token's value is beta·(its log-probability − that under the model as it was)."""

    def __init__(self, model: PreTrainedModel, start: PreTrainedModel, beta: float):
        super().__init__()
        self.model, self.start, self.beta = model.requires_grad_(True), start.requires_grad_(False), beta

    def forward(self, batch: Batch, whole: bool = False) -> Values:
        """Return the values of paths (P, 1); with `whole` those of their tokens too."""
        packed = batch.packed.to(self.model.device)
        learn_M = batch.tokens["learn"]
        at_T = batch.sampled_T
        lp_T = shared_statistics(self.model, packed, needed_M=learn_M)["lp"][at_T.to(packed.input_ids_M.device)]
        with torch.no_grad():
            start_T = shared_statistics(self.start, packed, needed_M=learn_M)["lp"][at_T.to(packed.input_ids_M.device)]
        value_T = self.beta * (lp_T - start_T)
        path_T = batch.path_T.to(value_T.device)
        value_P = value_T.new_zeros(batch.num_paths).index_add(0, path_T, value_T)
        return Values(value_P[:, None], {"": value_T} if whole else {})


def copy_body(policy: Policy) -> Any:
    """Return a copy of the transformer of a policy, without its head; adapters' base, where there are some."""
    return deepcopy(unwrap(policy.model).base_model)


def find_path_ends(batch: Batch) -> Tensor:
    """Return the packed index of the last token of each path (P,)."""
    borders = batch.packed.cu_seqlens_S1.tolist()
    ends = []
    for segment in batch.leaves:
        while borders[segment] == borders[segment + 1]:
            segment = batch.parents[segment]
        ends.append(borders[segment + 1] - 1)
    return torch.tensor(ends, dtype=torch.long)


def _rows(hidden_MC: Tensor, at_X: Tensor) -> Tensor:
    return hidden_MC.index_select(0, at_X.to(hidden_MC.device))
