"""open-instruct's configurations: fine-tuning, DPO and GRPO, as YAML or as options of a command."""

from typing import Any

from schemas.importers.common.adapters import LoraNames, QuantisationNames, map_adapters, map_quantisation
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import (
    Job,
    Source,
    Tool,
    map_group,
    map_model,
    map_reporting,
    map_seed,
    put_sources,
    put_truncation,
)
from schemas.importers.common.optimisation import Names, map_batch, map_optimisation, map_steps
from schemas.importers.common.pair_losses import map_pair_loss
from schemas.importers.common.references import refer
from schemas.importers.common.rollouts import put_iterations, put_rollouts
from schemas.importers.common.values import flag, number, whole
from schemas.importers.known_keys.open_instruct import KEYS
from schemas.source.foreign_keys import FOLDERS, HARMLESS, LOADING, PUBLISH, SPEED, TRACKING, UNSUPPORTED, spread

LORA = LoraNames("lora_rank", rank=64, scale=16, dropped=0.1)
QUANTISATION = QuantisationNames(("use_qlora",), is_nested=True)
MIXERS = ("dataset_mixer_list", "mixer_list", "dataset_mixer")
GRPO_MARKS = ("num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "total_episodes", "response_length")
ESTIMATORS = {"kl2": "k2", "kl3": "k3", "1": "k2", "2": "k3"}
"""Estimators of the KL term; the gradient of kl1 has the mean 0, and kl4 weighs by the ratio."""
ZERO = ("deepspeed_stage", "zero_stage")
DPO_MARKS = ("beta", "dpo_beta", "loss_type", "dpo_loss_type", "packing_dpo")


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    kind = _find_kind(job)
    leaves = job.leaves
    stage = job.draft.stage({"sft": "sft", "preference": "dpo", "rl": "grpo"}[kind], kind)
    map_model(job, stage, "model_name_or_path", "model_revision")
    if leaves.get("tokenizer_name") in (None, leaves.get("model_name_or_path")):
        for key in ("tokenizer_name", "tokenizer_name_or_path", "tokenizer_revision"):
            leaves.harmless(key, "the model's own tokenizer")
    put_sources(stage, "prompts" if kind == "rl" else "data", _map_data(job, stage), "dataset_mixer")
    clipping = leaves.first("clip_grad_norm", "max_grad_norm")
    epochs = leaves.first("num_train_epochs", "num_epochs")
    if kind == "rl":
        map_optimisation(stage, Names(grad_norm=clipping, rate=2e-5, norm=1.0))
        _map_rl(job, stage)
    else:
        map_optimisation(stage, Names(grad_norm=clipping, rate=2e-5, warmup=0.03, norm=-1))
        map_steps(stage, epochs, leaves.first("max_train_steps", "max_steps"), 2.0)
        map_batch(stage, "per_device_train_batch_size", "gradient_accumulation_steps", job.devices, 8)
        stage.copy("max_seq_length", "max_length", whole)
        if leaves.has("max_seq_length"):
            put_truncation(stage, "max_seq_length", True)
    if kind == "sft":
        stage.put("train_on", "all", "messages of the assistant")
        reduction = leaves.get("reduce_loss")
        advice = "theirs: sum; ours: the mean over all tokens of the batch"
        leaves.account("reduce_loss", "mapped" if reduction == "mean" else "default differs", advice)
        leaves.harmless("packing", "the rows of a batch in one sequence, without padding; nothing is padded here")
    elif kind == "preference":
        map_pair_loss(
            stage, leaves.first("loss_type", "dpo_loss_type"), leaves.first("beta", "dpo_beta"), 0.1, _smoothing(job)
        )
        leaves.unsupported("dpo_gamma_beta_ratio", "set `gamma` of the loss simpo")
        leaves.harmless("dpo_use_paged_optimizer", "`optim: adamw_8bit` saves memory")
        leaves.harmless("reduce_loss", "the loss of pairs is their mean")
    stage.put("bf16", True, "computes in bfloat16")
    if leaves.get("mixed_precision") == "bf16":
        leaves.mapped("mixed_precision", f"{stage.name}.bf16")
    leaves.unsupported("mixed_precision", "the recipe computes in bfloat16: `bf16: true`")
    map_adapters(stage, LORA, bool(leaves.get("use_lora")), "use_lora")
    leaves.account("use_lora", "mapped", f"{stage.name}.use_peft")
    map_quantisation(stage, QUANTISATION, sharded=job.devices > 1 and _shards(job))
    if leaves.get("use_8bit_optimizer"):
        stage.put("optim", "adamw_8bit", "use_8bit_optimizer")
    leaves.account("use_8bit_optimizer", "mapped", f"{stage.name}.optim")
    map_reporting(stage, {"save": leaves.first("checkpointing_steps", "save_freq")})
    if leaves.has("chat_template_name"):
        leaves.differs(
            "chat_template_name", "the model's own; give another one as `chat_template: path:template.jinja`"
        )
    if leaves.has("system_prompt_override_file"):
        leaves.account("system_prompt_override_file", "not supported", "set `system_prompt`")
    if _shards(job):
        map_group(job, stage, ZERO, ())
    map_group(job, stage, (), ZERO)
    map_seed(job, "seed", 42 if kind == "sft" else None)


def _shards(job: Job) -> bool:
    return any(job.leaves.get(key) in (2, 3) for key in ZERO)


def _find_kind(job: Job) -> str:
    script = " ".join(job.words)
    if "grpo" in script or any(job.leaves.has(key) for key in GRPO_MARKS):
        return "rl"
    if "dpo" in script or any(job.leaves.has(key) for key in DPO_MARKS) or "dpo" in job.leaves.file.lower():
        return "preference"
    return "sft"


def _smoothing(job: Job) -> str:
    return job.leaves.first("label_smoothing", "dpo_label_smoothing")


def _map_data(job: Job, stage: StageDraft) -> list[Source]:
    """Return the sources of rows. Raise RecipeError if the input names none."""
    leaves = job.leaves
    sources: list[Source] = []
    for key in ("dataset_name", "train_file"):
        if leaves.has(key):
            sources.append(_make_source(job, key, str(leaves.get(key)), None))
            leaves.mapped(key, f"{stage.name}.data.from", sources[-1].get("from", ""))
    for key in MIXERS:
        for name, amount in _read_mixer(leaves.get(key)):
            source = _make_source(job, key, name, amount)
            sources += [source] if source else []
        leaves.mapped(key, f"{stage.name}.data", "one source each; numbers of rows are max_rows, shares are split")
    splits = leaves.first("dataset_mixer_list_splits", "mixer_list_splits")
    named = leaves.get(splits)
    first = named[0] if isinstance(named, list) and named else named
    for source in sources:
        if isinstance(first, str) and first != "train" and source.get("from", "").startswith("hub:"):
            source["split"] = f"{first}{str(source.get('split', '')).removeprefix('train')}"
    leaves.account(splits, "mapped", f"{stage.name}.data.split")
    leaves.harmless("dataset_mix_dir", FOLDERS)
    leaves.unsupported("max_train_samples", "set `max_rows` of the sources")
    key = leaves.get("ground_truths_key", "ground_truth")
    if stage.kind == "rl":
        messages = str(leaves.get("sft_messages_key", "messages"))
        for source in sources:
            source |= {"format": "prompts", "columns": {"prompt": messages, "answer": str(key)}}
        for word in ("ground_truths_key", "sft_messages_key"):
            leaves.account(word, "mapped", f"{stage.name}.prompts.columns")
    made = [source for source in sources if source]
    if not made:
        raise job.fail(
            "dataset_mixer_list", "the configuration names no data", "add `dataset_mixer_list: [org/name, 1.0]`"
        )
    return made


def _read_mixer(value: Any) -> list[tuple[str, Any]]:
    """Return names and amounts of a map, or of a list that alternates them."""
    if isinstance(value, dict):
        return list(value.items())
    items = value if isinstance(value, list) else str(value).split() if value is not None else []
    return [(str(items[i]), items[i + 1] if i + 1 < len(items) else 1.0) for i in range(0, len(items), 2)]


def _make_source(job: Job, key: str, name: str, amount: Any) -> Source:
    """Return a source; an amount above 1 is a number of its first rows, one below 1 a share of them."""
    try:
        source: Source = {"from": refer(name, job.places)}
        rows = 1.0 if amount is None else number(amount)
    except ValueError as error:
        job.leaves.account(key, "not supported", str(error))
        return {}
    if rows > 1 or (isinstance(amount, int) and not isinstance(amount, bool) and rows >= 1):
        source["max_rows"] = int(rows)
    elif 0 < rows < 1 and 100 * rows == round(100 * rows):
        whole_split = "train" if source["from"].startswith("hub:") else ""
        source["split"] = f"{whole_split}[:{round(100 * rows)}%]"
    elif rows < 1:
        job.leaves.state_default(f"{key}: {name}", amount, "all its rows; set `max_rows` of the source")
    return source


def _map_rl(job: Job, stage: StageDraft) -> None:
    """Map rewards, sampling, the loss and iterations of GRPO."""
    leaves = job.leaves
    stage.put("algorithm", "grpo", "grpo_fast.py")
    stage.put("rewards", [{"use": "answers.boxed"}], "apply_verifiable_reward")
    ours = "answers.boxed; choose another in docs/rewards.md"
    for key in ("apply_verifiable_reward", "verification_reward", "apply_r1_style_format_reward"):
        leaves.account(key, "default differs", f"theirs: a verifier by the column dataset; ours {ours}")
    stage.copy("response_length", "max_completion_length", whole, 256)
    stage.copy("temperature", "temperature", number)
    leaves.unsupported("max_prompt_token_length", "prompts are never cut; drop long ones in a curate stage")
    prompts, group = (
        whole(leaves.get("num_unique_prompts_rollout", 16)),
        whole(leaves.get("num_samples_per_prompt_rollout", 4)),
    )
    mini = whole(leaves.get("num_mini_batches", 1))
    put_rollouts(stage, prompts * group, group, prompts * group // max(1, mini), "prompts × samples per rollout")
    stage.copy(leaves.first("num_epochs", "num_iterations"), "num_iterations", whole)
    for key in ("num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "num_mini_batches"):
        leaves.account(key, "mapped", f"{stage.name}.generation_batch_size: {prompts} prompts × {group} completions")
    episodes = whole(leaves.get("total_episodes", 100_000))
    put_iterations(job, stage, max(1, episodes // (prompts * group)), 1.0, "total_episodes", "num_train_epochs", 1)
    coef = number(leaves.get("beta", 0.05))
    word = str(leaves.get("kl_estimator", "kl3"))
    estimator = ESTIMATORS.get(word, "k2" if word in ("kl1", "0") else "k3")
    stage.put("loss_terms", [{"use": "kl", "estimator": estimator, "coef": coef}] if coef else [], "beta")
    status = "mapped" if word in ESTIMATORS else "default differs"
    leaves.account("kl_estimator", status, f"{stage.name}.loss_terms.kl.estimator: {estimator}")
    leaves.account("beta", "mapped", f"{stage.name}.loss_terms.kl.coef")
    loss = {"use": "clipped"}
    for theirs, own in (("clip_lower", "epsilon"), ("clip_higher", "epsilon_high")):
        if leaves.has(theirs):
            loss[own] = leaves.mapped(theirs, f"{stage.name}.policy_loss.{own}")
    if len(loss) > 1:
        stage.put("policy_loss", loss, "clip_lower, clip_higher")
    if leaves.has("advantage_normalization_type"):
        centred = leaves.get("advantage_normalization_type") == "centered"
        if centred:
            stage.put("advantage", [{"use": "center", "by": "group"}], "advantage_normalization_type")
        leaves.mapped("advantage_normalization_type", f"{stage.name}.advantage")
    stage.copy("mask_truncated_completions", "mask_truncated_completions", flag)
    for leaf in list(leaves.values):
        if leaf.startswith("vllm_"):
            leaves.harmless(leaf, "of vLLM, which posttrain places by itself: `engine: vllm`")
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "pack_length"):
        leaves.harmless(key, SPEED)
    for key in ("dataset_mixer_eval_list", "dataset_mixer_eval_list_splits", "local_eval_every"):
        leaves.unsupported(key, "give `eval_prompts` to evaluate in training")


TOOL = Tool(
    "open-instruct",
    "open-instruct",
    KEYS
    | {
        "dataset_mixer.*",
        "train_file",
        "tokenizer_name",
        "use_slow_tokenizer",
        "report_to",
        "dataset_mixer_list_splits.*",
    },
    (
        "dataset_mixer_list",
        "dataset_mix_dir",
        "num_unique_prompts_rollout",
        "use_slow_tokenizer",
        "max_train_samples",
        "checkpointing_steps",
        "with_tracking",
        "try_launch_beaker_eval_jobs",
        "dataset_mixer",
        "exp_name",
    ),
    convert,
    ("open_instruct", "grpo_fast", "dpo_tune", "finetune"),
    HARMLESS
    | spread(
        TRACKING,
        """
exp_name tracking_project_name wandb_project_name hf_metadata_dataset try_launch_beaker_eval_jobs
try_launch_beaker_eval_jobs_on_weka try_auto_save_to_beaker oe_eval_* eval_priority gs_bucket_path verbose
""",
    )
    | spread(
        SPEED,
        """
single_gpu_mode num_learners_per_node num_nodes use_flash_attn add_bos use_liger_kernel vllm_num_engines
async_steps inflight_updates timeout compile_model
""",
    )
    | spread(
        LOADING,
        """
dataset_skip_cache dataset_local_cache_dir dataset_cache_mode dataset_transform_fn cache_*
""",
    )
    | spread(
        "of the launcher mason.py, which starts the command on a cluster",
        """
artifact_ttl auto_checkpoint_state_dir auto_output_dir_path beaker_datasets budget cluster description env gpus
hostname image max_retries mount_docker_socket no_auto_dataset_cache no_hf_cache_env no_host_networking no_mount_nfs
no_try_launch_beaker_eval_jobs no_try_launch_beaker_eval_jobs_on_weka nohostnetworking non_resumable num_processes
preemptible priority pure_docker_mode secret shared_memory task_name workspace deepspeed_multinode_launcher
""",
    )
    | {"push_to_hub": PUBLISH},
    UNSUPPORTED
    | {"load_balancing_loss": "mixtures of experts have no loss for balance here"}
    | spread(
        "give the stage an environment with the tools: `env: {use: openai_tools, …}` (docs/tools.md)",
        """
tools tool_call_names tool_configs.** tool_parser_type per_turn_max_tokens pass_tools_to_chat_template pool_size
max_steps
""",
    ),
)
"""The tool."""
