"""New tokens for a tokenizer, and rows of embedding and head for them."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AddedToken, PreTrainedTokenizerBase

from learning.models.policy import Policy
from schemas.errors import StepError


def add_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
    """Add texts as tokens that stay visible in decoded text. Raise StepError for what cannot be a new token."""
    known = tokenizer.get_vocab()
    for text in texts:
        if not text or text in known or texts.count(text) > 1:
            raise StepError(f"added_tokens: {text!r} is empty, given twice, or a token already; remove it")
        tokenizer.add_tokens([AddedToken(text, normalized=False)])


def extend_vocabulary(policy: Policy, texts: Sequence[str]) -> None:
    """Add tokens to a policy; their rows of embedding and head are the mean of the rows before (Hewitt 2021).

    Rows that a model has beyond its tokenizer are used first, so the matrices grow only if they must.
    """
    before = len(policy.tokenizer)
    add_tokens(policy.tokenizer, texts)
    after = len(policy.tokenizer)
    model: Any = policy.model
    if after > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(after, mean_resizing=False)
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    with torch.no_grad():
        for weight in {id(layer.weight): layer.weight for layer in layers if layer is not None}.values():
            weight[before:after] = weight[:before].float().mean(0).to(weight.dtype)
        bias = getattr(layers[1], "bias", None)
        if bias is not None:
            bias[before:after] = bias[:before].float().mean().to(bias.dtype)
