"""Rules for an init stage that do not import Hugging Face libraries: whole-number sizes, tokens given twice."""

import string
from collections.abc import Iterator
from typing import Any

from schemas.errors import Problem
from schemas.stages.init import Init
from schemas.steps.step_info import StepInfo

SIZES = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "vocab_size",
        "n_embd",
        "n_layer",
        "n_head",
        "n_positions",
        "n_inner",
        "d_model",
        "d_ff",
        "d_kv",
        "num_layers",
        "num_heads",
        "ffn_dim",
        "embed_dim",
        "word_embed_proj_dim",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "n_routed_experts",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "state_size",
        "conv_kernel",
    }
)
"""Keys whose value is a count of at least 1."""
OPTIONAL = frozenset({"num_key_value_heads", "head_dim", "n_inner", "q_lora_rank", "ffn_dim", "word_embed_proj_dim"})
"""Sizes that may be null; the configuration then derives them."""
SWITCHES = frozenset({"tie_word_embeddings", "use_cache", "attention_bias", "mlp_bias", "norm_topk_prob"})
RATES = frozenset({"initializer_range", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta"})
LABELS = frozenset({"id2label", "label2id"})
TYPES = ("float32", "bfloat16", "float16", "float64", "auto")
PRINTABLE = string.digits + string.ascii_letters + string.punctuation
"""Characters that are tokens of `characters` unless it has another alphabet."""
LARGEST = 100_000_000
LAYERS = 10_000
WEIGHTS = 10**13
"""Largest number of weights in one matrix."""


def check_config(info: StepInfo, stage: Init) -> Iterator[Problem]:
    """Yield the problems with values of the configuration that no model supports."""
    for key, value in stage.config.items():
        problem = _find_problem(key, value)
        if problem:
            yield info.problem(f"config.{key}", *problem)
    hidden, width = stage.config.get("hidden_size"), stage.config.get("intermediate_size")
    if isinstance(hidden, int) and isinstance(width, int) and hidden * width > WEIGHTS:
        message = f"hidden_size times intermediate_size is {hidden * width:.0e} weights in one matrix"
        yield info.problem("config.hidden_size", message, "lower one of them")


def check_tokens(info: StepInfo, stage: Init) -> Iterator[Problem]:
    """Yield an alphabet that is none, and added tokens that are tokens already."""
    alphabet = ""
    if stage.model is None and stage.tokenizer.use == "characters":  # the tokens of others are known when they are made
        values = next((slot.values for slot in info.slots if slot.path == "tokenizer"), {})
        alphabet = values.get("alphabet", PRINTABLE)
        twice = sorted({character for character in alphabet if alphabet.count(character) > 1})
        if not alphabet:
            yield info.problem("tokenizer.alphabet", "this is empty", "give the characters that texts are made of")
        elif twice:
            yield info.problem("tokenizer.alphabet", f"{twice[0]!r} is there twice", "give each character once")
    known = {*alphabet}
    for place, text in enumerate(stage.added_tokens):
        if not text or text in known:
            message = f"{text!r} is a token already" if text else "a token without text"
            yield info.problem(f"added_tokens.{place}", message, "remove it")
        known.add(text)


def _find_problem(key: str, value: Any) -> tuple[str, str] | None:
    """Return the problem with a value and an advice, or None."""
    if value is None and key not in SIZES - OPTIONAL:
        return None
    if key == "model_type" and not isinstance(value, str):
        return "a model type must be a string", "for example `model_type: qwen3`"
    if key in ("dtype", "torch_dtype") and value not in TYPES:
        return f"{_describe_value(value)} is not a number type", f"write one of {', '.join(TYPES)}"
    if key in LABELS and not isinstance(value, dict):
        return f"{_describe_value(value)} is not a map of labels", "remove it: a policy has no labels"
    if key in SIZES:
        largest = LAYERS if "layer" in key else LARGEST
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            return (
                f"{_describe_value(value)} must be a whole number from 1 to {largest}",
                "for example `hidden_size: 96`",
            )
    if key in SWITCHES and not isinstance(value, bool):
        return f"{_describe_value(value)} must be true or false", "write true or false"
    if key in RATES and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e12):
        return f"{_describe_value(value)} must be a number from 0 up", "for example `rms_norm_eps: 1e-6`"
    return None


def _describe_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "this map" if isinstance(value, dict) else "this list"
    return f"`{value}`"
