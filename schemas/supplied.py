"""Names that the RL loop can supply to the functions of its slots (`schemas.use`)."""

SAMPLES = frozenset({"samples", "rows", "n", "step", "rng", "state", "history", "sampler"})
SCORING = SAMPLES - {"n"} | {"completions", "groups", "sources", "policy", "engine", "account", "max_steps"}
PATHS = frozenset({"length_P", "group_P", "truncated_P", "source_P", "turns_P"})
FIXED = frozenset(
    {
        "lp_behav_T",
        "lp_prox_T",
        "lp_ref_T",
        "lp_mean_prox_T",
        "entropy_behav_T",
        "entropy_prox_T",
        "reward_T",
        "path_T",
        "place_T",
        "length_T",
        "group_T",
        "source_T",
        "external_T",
        "version_T",
        "truncated_T",
        "broken_T",
        "value_T",
        "collision_prox_T",
        "turn_T",
        "seconds_T",
        "earned_T",
        "state_T",
        "kind_T",
        "merit_T",
        "origin_T",
        "gain_T",
        "shapley_T",
        "tag_T",
        "ok_T",
        "moment_T",
        "auxiliary_T",
        "step",
    }
)
"""Columns of sampled tokens that do not change while a batch is trained on."""
MOVING = FIXED | {"lp_T", "entropy_T", "lp_mean_T", "collision_T", "advantage_T"}
"""FIXED, and the columns that depend on the weights being trained."""
PAIR_COLUMNS = ("", "_ref", "_prev", "_tokens", "_score", "_present")
"""Columns of each side of a preference pair: log-probabilities of three policies, length, score."""
