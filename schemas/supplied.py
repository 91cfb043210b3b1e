"""What the RL loop can supply by name, for the slots of `schemas.use`."""

SAMPLES = frozenset({"samples", "rows", "n", "step", "rng", "state", "history", "sampler"})
SCORING = SAMPLES - {"n"} | {"completions", "groups", "sources", "policy", "engine", "desk"}
PATHS = frozenset({"length_P", "group_P", "truncated_P", "source_P", "turns_P"})
FIXED = frozenset(
    f"{name}_T"
    for name in (
        "lp_behav", "lp_prox", "lp_ref", "lp_mean_prox", "entropy_behav", "entropy_prox", "reward", "path", "place",
        "length", "group", "source", "external", "version", "truncated", "broken", "value", "collision_prox",
        "turn", "seconds", "earned",
    )
) | {"step", "auxiliary_T"}  # fmt: skip
"""Columns of sampled tokens that do not change while a batch is trained on."""
MOVING = FIXED | {"lp_T", "entropy_T", "lp_mean_T", "collision_T", "advantage_T"}
"""… and those of the weights that are being trained."""
PAIR_COLUMNS = ("", "_ref", "_prev", "_tokens", "_score")
"""What is known of each side of a preference pair: log-probabilities of three policies, length, what a judge said."""
