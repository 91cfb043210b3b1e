"""Q and V of tokens: a body with a value per entry of the vocabulary and head, and one of the state.

With `start: logits` Q(s, a) = V(s) + scale·(ℓ(s, a) − max ℓ(s, ·)), where ℓ is the language model's own output layer:
the greedy token is then that of the language model, and V the highest Q, before anything is learnt.

Shapes: X states, T sampled tokens, H heads of Q, V vocabulary, C width.
"""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from learning.auxiliary_networks.heads import load_network, read_network_info, save_network
from learning.auxiliary_networks.network import SPREAD, copy_body
from learning.batch.batch import Batch
from learning.models.forwards import unwrap
from learning.models.packed import pack, packed_hidden
from learning.models.policy import Policy
from schemas.errors import StepError

READS = "action_values"


@dataclass(frozen=True)
class TokenValues:
    """Q of every action (X, H, V) and V (X,) in some states."""

    q_XHV: Tensor
    v_X: Tensor


class ActionValues(nn.Module):
    """A body with `heads` values per entry of the vocabulary; the last row of its head is the value of the state."""

    reads = READS

    def __init__(self, body: Any, heads: int, *, start: str = "random", scale: float = 1.0, seed: int = 0):
        super().__init__()
        self.body, self.heads, self.start, self.scale = body.requires_grad_(True), heads, start, scale
        text = body.config.get_text_config()
        self.vocabulary = text.vocab_size
        precision = torch.promote_types(body.dtype, torch.float32)
        rows, width = heads * self.vocabulary + 1, text.hidden_size
        self.head = nn.Linear(width, rows, device=body.device, dtype=precision)
        drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * SPREAD / width**0.5
        drawn[-1] = 0.0
        self.head.weight.data.copy_(drawn)
        nn.init.zeros_(self.head.bias)

    def value_rows(self, hidden_XC: Tensor) -> TokenValues:
        """Return the values in states, from their hidden vectors."""
        out = self.head(hidden_XC.to(self.head.weight.dtype))
        raw_XHV, v_X = out[:, :-1].view(len(out), self.heads, self.vocabulary), out[:, -1]
        if self.start == "random":
            return TokenValues(raw_XHV, v_X)
        below_XHV = raw_XHV - raw_XHV.amax(-1, keepdim=True)
        return TokenValues(v_X[:, None, None] + self.scale * below_XHV, v_X)

    def forward(self, batch: Batch) -> TokenValues:
        """Return the values in the states before the sampled tokens of a batch (T states)."""
        packed = batch.packed.to(self.head.weight.device)
        source_T = packed.source_M.cpu()[batch.sampled_T]
        if bool((source_T < 0).any()):
            raise StepError("action_values: an episode without a prompt has no state to value; give every row a prompt")
        hidden_MC = packed_hidden(self.body, packed)
        return self.value_rows(hidden_MC.index_select(0, source_T.to(hidden_MC.device)))

    @torch.no_grad()
    def value_tokens(self, batch: Batch, *, minus_state: bool = False) -> Tensor:
        """Return the least Q of each sampled token (T,), with `minus_state` minus V of the state before it."""
        values = self(batch)
        ids_T = batch.packed.input_ids_M[batch.sampled_T].to(values.v_X.device)
        q_T = values.q_XHV.amin(1).gather(-1, ids_T[:, None])[:, 0]
        return q_T - values.v_X if minus_state else q_T

    @torch.no_grad()
    def value_contexts(self, contexts_X: list[list[int]]) -> TokenValues:
        """Return the values of the next token after contexts, of which none is empty."""
        packed = pack(contexts_X, [-1] * len(contexts_X)).to(self.head.weight.device)
        last_X = packed.cu_seqlens_S1[1:].long() - 1
        return self.value_rows(packed_hidden(self.body, packed).index_select(0, last_X.to(self.head.weight.device)))


def make_action_values(policy: Policy, heads: int, *, start: str, scale: float, seed: int) -> ActionValues:
    """Return a network with a copy of a policy's body. Raise StepError if `logits` are asked of several heads."""
    network = ActionValues(copy_body(policy), heads, start=start, scale=scale, seed=seed)
    if start == "logits":
        output: Any = unwrap(policy.model).get_output_embeddings()
        network.head.weight.data[:-1].copy_(output.weight.data)
        if output.bias is not None:
            network.head.bias.data[:-1].copy_(output.bias.data)
    return network


class Learner(nn.Module):
    """The network that is trained, and the slow copy from which targets are computed; checkpoints have both."""

    def __init__(self, network: ActionValues, *, slow: bool):
        super().__init__()
        self.network = network
        self.copy = deepcopy(network) if slow else None

    @property
    def target(self) -> ActionValues:
        """Return what targets are computed from, and what is published: the slow copy where there is one."""
        return self.network if self.copy is None else self.copy

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Move the slow copy to the network by a share of the way; buffers are equal already."""
        for slow, new in zip(self.target.parameters(), self.network.parameters(), strict=True):
            slow.lerp_(new, share)


def save_action_values(network: ActionValues, policy: Policy, folder: Path) -> None:
    """Write a network with the tokenizer of `policy`; equal ones give equal bytes."""
    settings = {"q_heads": network.heads, "start": network.start, "scale": network.scale}
    written: Any = network
    save_network(written, policy, folder, **settings)


def load_action_values(folder: Path, *, device: str = "cpu", dtype: str = "float32") -> tuple[ActionValues, Policy]:
    """Return a saved network and its tokenizer; raise StepError for a folder with anything else."""
    settings = read_network_info(folder)
    if settings["head"] != READS:
        raise StepError(
            f"{folder.name}: its values are of `{settings['head']}`; give the output of a stage of kind {READS}"
        )
    loaded, policy = load_network(folder, device=device, dtype=dtype)
    valued: Any = loaded
    network = ActionValues(valued.body, settings["q_heads"], start=settings["start"], scale=settings["scale"])
    network.head.load_state_dict(valued.head.state_dict())
    return network.eval(), policy
