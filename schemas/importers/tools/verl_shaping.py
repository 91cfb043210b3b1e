"""verl's penalty of long completions, and its choice of groups, both of DAPO."""

from schemas.importers.common.draft import StageDraft
from schemas.importers.common.leaves import Leaves
from schemas.importers.common.values import number, whole
from schemas.source.foreign_keys import TRACKING

BUFFERS = ("reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg")
UNLIMITED = 100.0
"""Batches of prompts that are drawn where verl sets no limit."""


def map_shaping(stage: StageDraft) -> None:
    """Map DAPO's penalty of long completions, and its choice of groups whose completions earn different rewards."""
    leaves, at = stage.leaves, "algorithm.filter_groups"
    buffer = next((key for key in BUFFERS if leaves.get(f"{key}.enable")), BUFFERS[0])
    if leaves.get(f"{buffer}.enable"):
        longest = int(stage.get("max_completion_length"))
        use = {"use": "overlong", "max_length": longest, "cache": whole(leaves.get(f"{buffer}.len", 0))}
        weight = number(leaves.get(f"{buffer}.penalty_factor", 1.0))
        use |= {} if weight == 1 else {"weight": weight}
        stage.put("reward_shaping", [*stage.get("reward_shaping", []), use], buffer)
        for key in ("enable", "len", "penalty_factor"):
            leaves.mapped(f"{buffer}.{key}", f"{stage.name}.reward_shaping.overlong")
        leaves.harmless(f"{buffer}.log", TRACKING)
    for key in BUFFERS:
        leaves.harmless(key, "is off")
    prompts = stage.leaves.get("data.train_batch_size", 1024)
    if leaves.get(f"{at}.enable"):
        tries = whole(leaves.get(f"{at}.max_num_gen_batches", 0))
        drawn = number(leaves.get("data.gen_batch_size", prompts)) / number(prompts)
        budget = drawn * tries if tries > 0 else UNLIMITED
        stage.put("resample", [{"use": "dynamic_sampling", "budget": max(1.0, budget)}], at)
        stage.put("filter_groups", "reward_variance", at)
        for key in (f"{at}.enable", f"{at}.max_num_gen_batches", "data.gen_batch_size"):
            leaves.mapped(key, f"{stage.name}.resample.dynamic_sampling, filter_groups")
        same = str(leaves.get(f"{at}.metric", "acc")) in ("acc", "score", "seq_reward", "seq_final_reward")
        status = "mapped" if same else "not supported"
        leaves.account(f"{at}.metric", status, f"{stage.name}.filter_groups: groups whose rewards differ")
    leaves.harmless(at, "is off")
    leaves.harmless("data.gen_batch_size", "only of algorithm.filter_groups")


def pass_over_reward_model(leaves: Leaves, why: str) -> None:
    """Account for the keys of the reward model, without those of the penalty of long completions."""
    for leaf in leaves.leaves_of("reward_model"):
        if not leaf.startswith(BUFFERS):
            leaves.harmless(leaf, why)
