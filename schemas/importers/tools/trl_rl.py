"""TRL's GRPO and RLOO, whose keys axolotl and oumi have below a prefix."""

from schemas.base import JsonObject
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import Job
from schemas.importers.common.rewards import map_rewards
from schemas.importers.common.rollouts import put_iterations, put_rollouts
from schemas.importers.common.values import flag, number, whole
from schemas.source.foreign_keys import SPEED, TRACKING

AGGREGATIONS: dict[str, tuple[str, str]] = {
    "grpo": ("sequence_mean", ""),
    "dapo": ("token_mean", ""),
    "bnpo": ("token_mean", "over the whole batch, not each device's part"),
    "dr_grpo": ("constant", "divided by max_completion_length"),
    "cispo": ("token_mean", ""),
}
"""TRL's `loss_type`: how tokens are weighted, and what differs."""
SAMPLING = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling options that posttrain does not have, and the values at which they do nothing."""
SPEED_KEYS = "use_vllm use_liger_loss cast_lm_head_to_fp32 use_transformers_paged use_transformers_continuous_batching"


def map_rl(job: Job, stage: StageDraft, prefix: str, rows_key: str, epochs_key: str, *, is_rloo: bool = False) -> None:
    """Take over the algorithm, sampling, rewards and iterations of keys below a prefix."""
    leaves = job.leaves
    stage.put("algorithm", "rloo" if is_rloo else "grpo", "the trainer")
    weights = leaves.get(f"{prefix}reward_weights")
    listed = [number(weight) for weight in weights] if isinstance(weights, list) else None
    stage.put("rewards", map_rewards(job, f"{prefix}reward_funcs", "trl", listed), f"{prefix}reward_funcs")
    if listed:
        leaves.mapped(f"{prefix}reward_weights", f"{stage.name}.rewards.weight")
    if leaves.has("reward_model_name_or_path"):
        _map_reward_model(job, stage)
    stage.copy(f"{prefix}max_completion_length", "max_completion_length", whole, 512)
    stage.copy(f"{prefix}temperature", "temperature", number)
    stage.copy(f"{prefix}mask_truncated_completions", "mask_truncated_completions", flag)
    stage.copy(f"{prefix}num_iterations", "num_iterations", whole)
    leaves.unsupported(f"{prefix}max_prompt_length", "prompts are never cut; drop long ones in a curate stage")
    _map_loss(stage, prefix, is_rloo)
    map_sampling_of_trl(stage, prefix)
    _map_batches(job, stage, prefix, rows_key, epochs_key)
    for key in SPEED_KEYS.split():
        leaves.harmless(f"{prefix}{key}", f"{SPEED}; `engine: vllm` samples with vLLM")
    for leaf in list(leaves.values):
        if leaf.startswith(f"{prefix}vllm_"):
            leaves.harmless(leaf, "of vLLM, which posttrain places by itself: `engine: vllm`")
    for key in ("log_completions", "num_completions_to_print", "log_unique_prompts"):
        leaves.harmless(f"{prefix}{key}", TRACKING)


def _map_reward_model(job: Job, stage: StageDraft) -> None:
    """Add TRL's reward model, which takes the place of the default reward."""
    key = "reward_model_name_or_path"
    rewards = map_rewards(job, key, "trl")
    before = stage.get("rewards") if job.leaves.has("reward_funcs") else []
    stage.put("rewards", [*before, *rewards], key)


def _map_loss(stage: StageDraft, prefix: str, is_rloo: bool) -> None:
    leaves = stage.leaves
    beta = leaves.get(f"{prefix}beta", 0.05 if is_rloo else 0.0)
    coef = number(beta)
    if is_rloo:
        if coef:
            stage.put("reward_shaping", [{"use": "kl_in_reward", "beta": coef}], f"{prefix}beta")
        leaves.account(f"{prefix}beta", "mapped", f"{stage.name}.reward_shaping.kl_in_reward.beta")
        leaves.unsupported(f"{prefix}normalize_advantages", "add `{use: scale, by: batch}` to `advantage`")
        leaves.unsupported(f"{prefix}reward_clip_range", "add `{use: clip}` to `advantage`")
        for key in ("epsilon", "epsilon_high"):
            leaves.account(
                f"{prefix}{key}", "not supported", "the preset rloo makes one update per batch and clips nothing"
            )
        return
    stage.put("loss_terms", [{"use": "kl", "estimator": "k3", "coef": coef}] if coef else [], f"{prefix}beta")
    leaves.account(f"{prefix}beta", "mapped", f"{stage.name}.loss_terms.kl.coef")
    kind = str(leaves.get(f"{prefix}loss_type", "dapo")).lower()
    if kind in AGGREGATIONS:
        use, note = AGGREGATIONS[kind]
        stage.put("loss_aggregation", use, f"{prefix}loss_type: {kind}")
        leaves.account(f"{prefix}loss_type", "mapped", f"{stage.name}.loss_aggregation: {use} {note}".strip())
        if not leaves.has(f"{prefix}loss_type"):
            leaves.state_default(f"{prefix}loss_type", "dapo", "sequence_mean in grpo; the recipe says token_mean")
    else:
        advice = "see the presets in docs/recipes.md (sapo_soft_adaptive, luspo, vespo); the recipe has grpo"
        leaves.account(f"{prefix}loss_type", "not supported", advice)
    _map_clipping(stage, prefix, "cispo" if kind == "cispo" else "clipped")
    _map_scale(stage, prefix)
    level = str(leaves.get(f"{prefix}importance_sampling_level", "token"))
    ratio = {"token": "token", "sequence": "sequence", "sequence_token": "sequence_token"}.get(level)
    if ratio and ratio != "token":
        stage.put("ratio", ratio, f"{prefix}importance_sampling_level")
    status = "mapped" if ratio else "not supported"
    leaves.account(f"{prefix}importance_sampling_level", status, f"{stage.name}.ratio: {ratio or 'token'}")


def _map_clipping(stage: StageDraft, prefix: str, use: str) -> None:
    loss: JsonObject = {"use": use}
    for key in ("epsilon", "epsilon_high", "delta"):
        value = stage.leaves.get(f"{prefix}{key}")
        if value is not None and not (use == "cispo" and key == "delta"):
            loss[key] = number(value)
            stage.leaves.mapped(f"{prefix}{key}", f"{stage.name}.policy_loss.{key}")
    if len(loss) > 1 or use == "cispo":
        stage.put("policy_loss", loss, f"{prefix}epsilon")


def _map_scale(stage: StageDraft, prefix: str) -> None:
    """Write the advantage: centred by group, and divided by the standard deviation of the group or the batch."""
    key = f"{prefix}scale_rewards"
    word = str(stage.leaves.get(key, "group")).lower()
    by = {"true": "group", "group": "group", "batch": "batch", "false": None, "none": None}.get(word, "group")
    if by != "group":
        advantage: list[JsonObject] = [{"use": "center", "by": "group"}]
        advantage += [] if by is None else [{"use": "scale", "by": by, "stat": "std", "epsilon": 1e-4}]
        stage.put("advantage", advantage, key)
    stage.leaves.account(key, "mapped", f"{stage.name}.advantage: scaled by {by or 'nothing'}")


def map_sampling_of_trl(stage: StageDraft, prefix: str) -> None:
    """Record options of sampling, which posttrain does not have."""
    for key, neutral in SAMPLING.items():
        value = stage.leaves.get(f"{prefix}{key}")
        if value is None or value in (neutral, -1, str(neutral)):
            stage.leaves.account(f"{prefix}{key}", "harmless", "does nothing at this value")
        else:
            advice = "sampling is by temperature alone, so that the loss sees what was sampled; leave it out"
            stage.leaves.account(f"{prefix}{key}", "not supported", advice)


def _map_batches(job: Job, stage: StageDraft, prefix: str, rows_key: str, epochs_key: str) -> None:
    """Write the completions of an iteration and the number of iterations."""
    leaves = job.leaves

    def read(key: str, default: int) -> int:
        try:
            return max(1, whole(leaves.get(key, default)))
        except ValueError:
            return default

    accumulation = read("gradient_accumulation_steps", 1)
    update = read(rows_key, 8) * accumulation * job.devices
    group = read(f"{prefix}num_generations", 8)
    per_generation = read(f"{prefix}steps_per_generation", accumulation)
    generated = read(f"{prefix}generation_batch_size", read(rows_key, 8) * job.devices * per_generation)
    source = f"{rows_key} × gradient_accumulation_steps × {job.devices} devices"
    put_rollouts(stage, generated, group, update, source)
    note = f"{stage.get('generation_batch_size')} completions per iteration, {update} per optimiser step"
    for key in (
        rows_key,
        "gradient_accumulation_steps",
        f"{prefix}steps_per_generation",
        f"{prefix}generation_batch_size",
    ):
        leaves.account(key, "mapped", f"{stage.name}.generation_batch_size: {note}")
    leaves.account(f"{prefix}num_generations", "mapped", f"{stage.name}.num_generations")
    updates = int(stage.get("num_mini_batches", 1)) * int(stage.get("num_iterations", 1))
    try:
        steps = whole(leaves.get("max_steps", -1))
        epochs = number(leaves.get(epochs_key, 3.0 if not prefix else 1.0))
    except ValueError as error:
        raise job.fail("max_steps", str(error), "give a number") from None
    put_iterations(job, stage, steps, epochs, "max_steps", epochs_key, updates)
