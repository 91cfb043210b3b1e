"""kind: init — a tokenizer and a randomly initialised model from a configuration."""

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from learning.lookup import bind
from learning.models.added_tokens import add_tokens, extend_vocabulary
from learning.models.architectures import find_new_model_problem
from learning.models.policy import Policy, load_policy, read_dtype, save_policy, set_determinism
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.stages.init import Init
from schemas.suggestions import suggest
from tasks.context import Context, Result

LEGACY = {"rope_theta", "rope_scaling"}
"""Arguments that every configuration accepts without listing them."""


def run(stage: Init, context: Context) -> Result:
    """Build the tokenizer, then a model with its vocabulary and seeded random weights, in float32.

    With `model`, return that model, in its own precision, with added tokens.
    """
    set_determinism(context.seed, context.num_threads)
    if stage.model is not None:
        folder = context.input("model")
        policy = load_policy(folder, dtype=read_dtype(folder))
        extend_vocabulary(policy, stage.added_tokens)
        save_policy(policy, context.output("model"))
        return Result(describe(policy))
    tokenizer = bind(stage.tokenizer, "tokenizer", context.inputs)()
    tokenizer.model_max_length = stage.max_length
    add_tokens(tokenizer, stage.added_tokens)
    model = make_model(make_config(stage.config, tokenizer, stage.max_length))
    policy = Policy(model, tokenizer, stage.max_length)
    save_policy(policy, context.output("model"))
    return Result(describe(policy))


def describe(policy: Policy) -> dict[str, float | int]:
    """Return the metrics of a new model."""
    counts = {"parameters": policy.model.num_parameters(), "vocabulary": len(policy.tokenizer)}
    return {**counts, "max_length": policy.max_length}


def make_config(settings: JsonObject, tokenizer: PreTrainedTokenizerBase, max_length: int) -> PreTrainedConfig:
    """Return the configuration for `settings`, with the tokenizer's vocabulary and without dropout.

    Raises StepError for an unknown model_type or argument, for a model that is not causal, for dropout, and for values
    that contradict the tokenizer.
    """
    if problem := find_new_model_problem(settings):
        raise StepError(f"config.model_type: {problem}")
    arguments = dict(settings)
    model_type = arguments.pop("model_type")
    kind = CONFIG_MAPPING[model_type]
    default = kind()
    names = sorted({*default.to_dict(), *kind.attribute_map, *LEGACY})
    for name in arguments:
        if name not in names:
            raise StepError(f"config.{name}: {model_type} has no such argument; {suggest(name, names, 'arguments')}")
    dropouts = {n: 0.0 for n in default.to_dict() if "drop" in n and isinstance(getattr(default, n), float)}
    for name in dropouts:
        if arguments.get(name):
            raise StepError(f"config.{name}: dropout makes training and sampling policies differ; remove it")
    if arguments.setdefault("max_position_embeddings", max_length) < max_length:
        raise StepError(
            f"config.max_position_embeddings is less than max_length ({max_length}); raise it, or lower max_length"
        )
    config = build_config(kind, {**arguments, **dropouts, **read_tokenizer(tokenizer, arguments)}, names)
    heads, groups = (getattr(config, f"num_{name}_heads", None) for name in ("attention", "key_value"))
    if heads and groups and heads % groups:
        raise StepError(
            f"config.num_key_value_heads: {groups} does not divide num_attention_heads ({heads}); set both "
            f"(an omitted argument has the default of {model_type})"
        )
    return config


def read_tokenizer(tokenizer: PreTrainedTokenizerBase, arguments: JsonObject) -> JsonObject:
    """Return vocabulary size and special token ids; raise StepError if the recipe sets other values."""
    values = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    for name, value in values.items():
        if arguments.get(name, value) != value:
            raise StepError(f"config.{name} is {value} in the tokenizer, not {arguments[name]}; remove it")
    return values


def build_config(kind: type[PreTrainedConfig], arguments: JsonObject, names: list[str]) -> PreTrainedConfig:
    """Return the configuration; raise StepError for values that transformers refuses."""
    try:
        return kind(**{name: value for name, value in arguments.items() if name in names})
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise StepError(f"config: transformers refuses these values for {kind.model_type}: {error}") from error


def make_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a model with random weights from torch's generator; raise StepError for incompatible sizes."""
    try:
        return AutoModelForCausalLM.from_config(config).float().eval()
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise StepError(f"config: these sizes do not make a {config.model_type} model: {error}") from error
