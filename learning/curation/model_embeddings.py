"""Vectors of rows by models: the cosine of two says how similar the rows are."""

import numpy as np
import torch

from learning.curation.row_filters import Part, get_text
from learning.data.chat import encode_text
from learning.data.rows import Row
from learning.models.packed import pack, packed_hidden
from learning.sampling.verdicts import guest
from schemas.references import PolicyRef

TOKENS = 16_384
"""Tokens per forward pass."""


def hidden_states(rows: list[Row], *, model: PolicyRef, part: Part = "all") -> np.ndarray:
    """Mean of a language model's last hidden states over the tokens of the text, up to its longest sequence."""
    policy = guest(model).policy
    ids = [encode_text(policy.tokenizer, get_text(row, part))[: policy.max_length] for row in rows]
    means_RC = np.zeros((len(rows), policy.model.config.get_text_config().hidden_size), np.float32)
    for places in _split_by_tokens([len(some) for some in ids]):
        packed = pack([ids[i] for i in places], [-1] * len(places)).to(policy.model.device)
        with torch.no_grad():
            hidden_MC = packed_hidden(policy.model, packed).float()
        means = [part_TC.mean(0) for part_TC in hidden_MC.split([len(ids[i]) for i in places])]
        means_RC[places] = torch.stack(means).cpu().numpy()
    return means_RC


def _split_by_tokens(sizes: list[int]) -> list[list[int]]:
    """Return the places of texts with tokens, in groups of about `TOKENS` tokens."""
    groups: list[list[int]] = []
    room = 0
    for place, size in enumerate(sizes):
        if not size:
            continue
        if not groups or size > room:
            groups.append([])
            room = TOKENS
        groups[-1].append(place)
        room -= size
    return groups
