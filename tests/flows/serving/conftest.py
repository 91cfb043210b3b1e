"""Tiny models of characters for the endpoint."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from learning.data.tokenizers import characters
from learning.models.policy import Policy


def make_policy(seed):
    """A random model whose tokens are far from equally likely."""
    torch.manual_seed(seed)
    tokenizer = characters()
    tokenizer.model_max_length = 128
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim >= 2 else 1)
    return Policy(model, tokenizer, 128)


@pytest.fixture(scope="module")
def policy():
    return make_policy(0)
