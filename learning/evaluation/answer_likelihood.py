"""How likely a model thinks the reference answers: the log-probability of a row's answer right after its prompt."""

from collections.abc import Sequence

import numpy as np
import torch

from learning.data.chat import encode_prompt, encode_text
from learning.data.rows import Row
from learning.models.packed import pack, packed_logprobs
from learning.models.policy import Policy


@torch.no_grad()
def measure_answer_logprobs(policy: Policy, rows: Sequence[Row]) -> np.ndarray:
    """Return the mean log-probability (nats) per token of every row's answer, (P,); exp(−x) is its perplexity.

    Computed by the model's own forward, one row at a time. NaN for rows without an answer, and for those that exceed
    the model's context.
    """
    return np.array([_measure_row(policy, row) for row in rows])


def _measure_row(policy: Policy, row: Row) -> float:
    if not row["answer"]:
        return float("nan")
    prompt = encode_prompt(policy.tokenizer, row["prompt"])
    answer = encode_text(policy.tokenizer, row["answer"])
    if not answer or len(prompt) + len(answer) > policy.max_length:
        return float("nan")
    packed = pack([prompt + answer], [-1]).to(policy.model.device)
    needed_L = torch.arange(len(prompt) + len(answer)) >= len(prompt)
    lp_L, _ = packed_logprobs(policy.model, packed, needed_M=needed_L, body="padded")
    return float(lp_L[len(prompt) :].mean())
