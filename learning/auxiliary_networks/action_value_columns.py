"""Columns of Q and V at the tokens of episodes, for losses: values of the tokens taken, and of what follows them.

Columns of the next state are those at the next token of the same episode, after the environment's answer; 0 after its
last token. Shapes: T sampled tokens, H heads of Q, V vocabulary.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from learning.auxiliary_networks.action_values import Learner, TokenValues
from learning.batch.batch import Batch
from learning.batch.columns import ColumnView, find_turn_ends, take_next_token
from learning.models.packed import packed_hidden
from learning.models.padded import compute_logits

NEXT_REFERENCE = "q_next_ref_T"


def make_columns(learner: Learner, batch: Batch, asked: Collection[str], reference: Any = None) -> Mapping[str, Any]:
    """Return the columns that losses ask for; those of the network have a gradient, those of its slow copy have none.

    `reference` is the language model whose greedy token `q_next_ref_T` is about.
    """
    values = learner.network(batch)
    ids_T = batch.packed.input_ids_M[batch.sampled_T].to(values.v_X.device)
    path_T = batch.path_T.to(ids_T.device)
    q_TH = _take(values.q_XHV, ids_T)
    columns: dict[str, Any] = {
        "q_THV": values.q_XHV,
        "q_TH": q_TH,
        "v_T": values.v_X,
        "reward_T": place_rewards(batch).to(values.v_X),
        "v_next_T": _next(values.v_X.detach(), path_T),
    }
    columns |= _make_target_columns(learner, values, batch, asked, reference)
    return ColumnView(batch, values.v_X, **columns)


@torch.no_grad()
def _make_target_columns(
    learner: Learner, values: TokenValues, batch: Batch, asked: Collection[str], reference: Any
) -> dict[str, Tensor]:
    """Return the columns of the slow copy, by the least of its heads."""
    if not {"q_target_T", "q_next_max_T", NEXT_REFERENCE} & set(asked):
        return {}
    least_TV = (values if learner.copy is None else learner.copy(batch)).q_XHV.amin(1)
    path_T = batch.path_T.to(least_TV.device)
    ids_T = batch.packed.input_ids_M[batch.sampled_T].to(least_TV.device)
    columns = {"q_target_T": _choose(least_TV, ids_T), "q_next_max_T": _next(least_TV.amax(-1), path_T)}
    if NEXT_REFERENCE in asked:
        greedy_T = find_greedy_tokens(reference, batch).to(ids_T.device)
        columns[NEXT_REFERENCE] = _next(_choose(least_TV, greedy_T), path_T)
    return columns


def place_rewards(batch: Batch) -> Tensor:
    """Return what each turn earned at its last token (T,), 0 at the others."""
    ends_T = find_turn_ends(batch.path_T, batch.sampled("turn"))
    return batch.sampled("earned") * ends_T


@torch.no_grad()
def find_greedy_tokens(model: Any, batch: Batch) -> Tensor:
    """Return a language model's likeliest token in the state before each sampled token (T,)."""
    packed = batch.packed.to(model.device)
    source_T = packed.source_M[batch.sampled_T.to(packed.source_M.device)]
    return compute_logits(model, packed_hidden(model, packed)[source_T.to(model.device)]).argmax(-1)


def _take(q_THV: Tensor, ids_T: Tensor) -> Tensor:
    return q_THV.gather(-1, ids_T[:, None, None].expand(-1, q_THV.shape[1], 1))[..., 0]


def _choose(q_TV: Tensor, ids_T: Tensor) -> Tensor:
    return q_TV.gather(-1, ids_T[:, None])[:, 0]


def _next(value_T: Tensor, path_T: Tensor) -> Tensor:
    return take_next_token(value_T, torch.zeros_like(value_T), path_T)
