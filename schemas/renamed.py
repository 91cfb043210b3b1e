"""Renamed keys, functions, values and metrics of recipes, for the error at an old name, which is always refused."""

from collections.abc import Collection

KEYS: dict[str, tuple[str, ...]] = {
    # Slots of an rl stage.
    "plan": ("prompt_sampler",),
    "drive": ("rollout",),
    "process": ("logits_processors",),
    "follow_up": ("resample",),
    "max_rounds": ("max_sampling_rounds",),
    "source": ("extra_samples",),
    "filter": ("filter_groups",),
    "shape": ("reward_shaping",),
    "branches": ("advantage_streams",),
    "modulate": ("advantage_shaping",),
    "correct": ("importance_correction", "reward"),
    "select": ("token_mask",),
    "surrogate": ("policy_loss",),
    "weigh": ("loss_aggregation", "reweight"),
    "components": ("loss_terms",),
    "control": ("controllers", "controller"),
    "auxiliaries": ("auxiliary_models",),
    # Keys inside `references`, `critic`, `auxiliary_models` and `watch`.
    "every": ("sync_steps",),
    "mix": ("mixup_alpha",),
    "follow": ("target_network",),
    "factor": ("learning_rate_factor",),
    # Keys of other kinds.
    "program": ("solver",),
    # Options of functions.
    "component": ("reward",),
}
"""Old key to its new names; the advice is the one that exists at the place of the key."""

FUNCTIONS = {
    "whole": "synchronous",
    "refill": "dynamic_sampling",
    "togo": "reward_to_go",
    "diff": "value_difference",
    "running": "running_baseline",
    "lift": "broadcast_to_tokens",
    "ce": "cross_entropy",
    "ce_uncertain": "cross_entropy_uncertain",
}
"""Old to new name of a function, if the slot has a function of the new name."""

VALUES = {"cap": "truncate", "drop": "mask", "step_back": "roll_back"}
"""Old to new value of a key, if the key allows the new value."""

METRICS = {"control/": "controller/", "loss/ce": "loss/cross_entropy"}
"""Old to new beginning of the name of a metric."""


def find_renamed_key(word: str, keys: Collection[str]) -> str | None:
    """Return the new name of an old key if it is one of `keys`, else None."""
    return next((new for new in KEYS.get(word, ()) if new in keys), None)


def find_renamed_function(name: str, names: Collection[str]) -> str | None:
    """Return the new name of a function if it is one of `names`, else None."""
    return FUNCTIONS[name] if FUNCTIONS.get(name) in names else None


def find_renamed_value(value: object, values: Collection[str]) -> str | None:
    """Return the new name of an old value if it is one of `values`, else None."""
    return VALUES[value] if isinstance(value, str) and VALUES.get(value) in values else None


def find_renamed_metric(name: str, metrics: Collection[str]) -> str | None:
    """Return the new name of a metric if it is one of `metrics`, else None."""
    candidates = (new + name.removeprefix(old) for old, new in METRICS.items() if name.startswith(old))
    return next((candidate for candidate in candidates if candidate in metrics), None)


def describe_renaming(word: str, new: str) -> str:
    """Return the message of the error at an old name."""
    return f"`{word}` is now `{new}`"
