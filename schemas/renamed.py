"""Words of recipes that were renamed, for the error at an old one: advice, nothing accepts the old words."""

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
"""Old key to the words that replaced it: the one that fits at the key's place is meant."""

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
"""Old name of a function to its name, where the slot has one of that name."""

VALUES = {"cap": "truncate", "drop": "mask", "step_back": "roll_back"}
"""Old value of a key to its value, where the key allows that."""

METRICS = {"control/": "controller/", "loss/ce": "loss/cross_entropy"}
"""Old beginning of a metric's name to its beginning."""


def renamed_key(word: str, known: Collection[str]) -> str | None:
    """Return the present word for an old key, where it is one of the keys `known` at this place."""
    return next((new for new in KEYS.get(word, ()) if new in known), None)


def renamed_function(name: str, known: Collection[str]) -> str | None:
    """Return the present name of a function, where it is one of the names `known` to the slot."""
    return FUNCTIONS[name] if FUNCTIONS.get(name) in known else None


def renamed_value(value: object, known: Collection[str]) -> str | None:
    """Return the present word for an old value, where it is one of the words `known` to the key."""
    return VALUES[value] if isinstance(value, str) and VALUES.get(value) in known else None


def renamed_metric(name: str, known: Collection[str]) -> str | None:
    """Return the present name of a metric, where it is one of the metrics `known`."""
    new = (now + name.removeprefix(old) for old, now in METRICS.items() if name.startswith(old))
    return next((candidate for candidate in new if candidate in known), None)


def now_called(word: str, new: str) -> str:
    """Return the message of the error at an old word."""
    return f"`{word}` is now `{new}`"
