"""oumi's training configurations."""

from schemas.base import JsonObject
from schemas.importers.common.adapters import LoraNames, QuantisationNames, map_adapters, map_quantisation
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import (
    Job,
    Source,
    Tool,
    map_evaluation,
    map_group,
    map_model,
    map_reporting,
    map_seed,
    put_held_out,
    put_sources,
    put_split,
    use_whole_states,
)
from schemas.importers.common.optimisation import Names, map_batch, map_dtype, map_optimisation, map_steps
from schemas.importers.common.pair_losses import map_pair_loss, set_pair_losses
from schemas.importers.common.references import refer
from schemas.importers.common.rewards import map_rewards
from schemas.importers.common.rollouts import put_iterations, put_rollouts
from schemas.importers.common.templates import map_template
from schemas.importers.common.values import flag, mapping, number, whole
from schemas.importers.known_keys.oumi import KEYS
from schemas.importers.tools.trl_rl import map_sampling_of_trl
from schemas.source.foreign_keys import FOLDERS, HARMLESS, LOADING, RESUME, SPEED, TRACKING, UNSUPPORTED

T, M, P = "training.", "model.", "peft."
NAMES = Names(
    learning_rate=f"{T}learning_rate",
    optim=f"{T}optimizer",
    schedule=f"{T}lr_scheduler_type",
    schedule_options=f"{T}lr_scheduler_kwargs",
    warmup_ratio=f"{T}warmup_ratio",
    warmup_steps=f"{T}warmup_steps",
    weight_decay=f"{T}weight_decay",
    beta1=f"{T}adam_beta1",
    beta2=f"{T}adam_beta2",
    epsilon=f"{T}adam_epsilon",
    grad_norm=f"{T}max_grad_norm",
)
LORA = LoraNames(
    r=f"{P}lora_r",
    alpha=f"{P}lora_alpha",
    dropout=f"{P}lora_dropout",
    targets=f"{P}lora_target_modules",
    saved=f"{P}lora_modules_to_save",
    rslora=f"{P}use_rslora",
    dora=f"{P}use_dora",
    rank=8,
    scale=8,
)
QUANTISATION = QuantisationNames(
    (f"{P}q_lora",),
    f"{P}bnb_4bit_quant_type",
    f"{P}use_bnb_nested_quant",
    (f"{P}q_lora_bits", f"{P}bnb_4bit_compute_dtype"),
    fallback_type="fp4",
)
TRAINERS = {
    "TRL_SFT": ("sft", "sft"),
    "HF": ("sft", "sft"),
    "OUMI": ("sft", "sft"),
    "TRL_DPO": ("dpo", "preference"),
    "TRL_KTO": ("kto", "preference"),
    "TRL_GRPO": ("grpo", "rl"),
    "VERL_GRPO": ("grpo", "rl"),
}
BY_PATH = ("text_sft", "text_sft_jsonl", "PromptResponseDataset", "HuggingFaceDataset", "vl_sft")
"""Names of classes of data sets that read a path, or a data set that is an option of them."""


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    leaves = job.leaves
    trainer = str(leaves.get(f"{T}trainer_type", "HF")).upper().removeprefix("TRAINERTYPE.")
    if trainer not in TRAINERS:
        raise job.fail(f"{T}trainer_type", f"trainer {trainer} has no counterpart", f"there are {', '.join(TRAINERS)}")
    name, kind = TRAINERS[trainer]
    stage = job.draft.stage(name, kind)
    leaves.account(f"{T}trainer_type", "mapped", f"a stage of kind {kind}")
    map_model(job, stage, f"{M}model_name", f"{M}model_revision")
    _map_data(job, stage, "prompts" if kind == "rl" else "data")
    map_optimisation(stage, NAMES)
    if kind == "rl":
        _map_rl(job, stage)
    else:
        map_steps(stage, f"{T}num_train_epochs", f"{T}max_steps", 3.0)
        rows, accumulation = f"{T}per_device_train_batch_size", f"{T}gradient_accumulation_steps"
        map_batch(stage, rows, accumulation, job.devices, 8)
        stage.copy(f"{M}model_max_length", "max_length", whole)
    if kind == "sft":
        _map_masks(stage)
    elif kind == "preference":
        _map_pairs(stage, name)
    if leaves.has(f"{M}chat_template"):
        map_template(stage, f"{M}chat_template")
    _map_precision(stage)
    map_adapters(stage, LORA, bool(leaves.get(f"{T}use_peft")), f"{T}use_peft")
    leaves.account(f"{T}use_peft", "mapped", f"{stage.name}.use_peft")
    map_quantisation(stage, QUANTISATION, sharded=job.devices > 1 and _shards(job))
    names = {"save": f"{T}save_steps", "log": f"{T}logging_steps", "recompute": f"{T}enable_gradient_checkpointing"}
    map_reporting(stage, names)
    _map_held_out(job, stage)
    if kind != "rl":
        map_evaluation(job, stage, "data.validation.share", f"{T}eval_steps")
    for key in ("eval_strategy", "eval_steps"):
        leaves.harmless(f"{T}{key}", "nothing is held out; `validation_fraction` would")
    for part in ("data.validation", "data.test"):
        leaves.unsupported(part, "hold out rows with `validation_fraction`, or add an `evaluate` stage")
    _map_groups(job, stage)
    map_seed(job, f"{T}seed", 42)


def _map_held_out(job: Job, stage: StageDraft) -> None:
    """Map the rows to evaluate on; oumi evaluates in training unless `eval_strategy` is off."""
    at = "data.validation"
    if str(job.leaves.get(f"{T}eval_strategy", "no")).lower() == "no":
        job.leaves.harmless(at, f"nothing is evaluated: {T}eval_strategy is off")
        return
    put_held_out(stage, _list_sources(job, stage, at), f"{at}.datasets")
    job.leaves.harmless(at, LOADING)


def _map_groups(job: Job, stage: StageDraft) -> None:
    """Take over FSDP and DeepSpeed, which oumi switches on by a key of their own."""
    leaves = job.leaves
    for part, switch in (("fsdp", "enable_fsdp"), ("deepspeed", "enable_deepspeed")):
        if not leaves.get(f"{part}.{switch}"):
            leaves.harmless(part, "is off")
    shards = _shards(job)
    switch = "fsdp.enable_fsdp" if shards and leaves.get("fsdp.enable_fsdp") else "deepspeed.enable_deepspeed"
    map_group(job, stage, ("fsdp",) if shards else (), ("deepspeed",))
    if shards and job.devices > 1:
        group = {"train": {"workers": job.devices, "num_gpus": 1, "strategy": "fsdp2"}}
        stage.put("resources", group, switch)
        use_whole_states(stage)


def _shards(job: Job) -> bool:
    leaves = job.leaves
    return bool(leaves.get("fsdp.enable_fsdp")) or "3" in str(leaves.get("deepspeed.zero_stage", ""))


def _map_data(job: Job, stage: StageDraft, port: str) -> None:
    leaves, at = job.leaves, "data.train"
    sources = _list_sources(job, stage, at)
    if not sources:
        advice = "add `data: {train: {datasets: [{dataset_name: …}]}}`"
        raise job.fail("data.train.datasets", "the configuration names no data that can be read", advice)
    put_sources(stage, port, sources, "data.train.datasets")
    if stage.kind == "sft":
        stage.copy(f"{at}.pack", "packing", flag)
    for key in ("stream", "seed", "use_torchdata", "use_async_dataset", "mixture_strategy", "target_col"):
        leaves.harmless(f"{at}.{key}", LOADING)


def _list_sources(job: Job, stage: StageDraft, at: str) -> list[Source]:
    listed = job.leaves.get(f"{at}.datasets")
    items = enumerate(listed if isinstance(listed, list) else [])
    made = [_make_source(job, stage, f"{at}.datasets.{i}", item) for i, item in items if isinstance(item, dict)]
    return [source for source in made if source]


def _make_source(job: Job, stage: StageDraft, at: str, item: JsonObject) -> Source:
    leaves = job.leaves
    name, path = item.get("dataset_name"), item.get("dataset_path")
    options = mapping(item.get("dataset_kwargs"))
    inner = "dataset_path" if "dataset_path" in options else "hf_dataset_path"
    key = f"{at}.dataset_path" if path else f"{at}.dataset_kwargs.{inner}" if inner in options else f"{at}.dataset_name"
    try:
        source: Source = {"from": refer(path or options.get(inner) or name, job.places)}
    except ValueError as error:
        leaves.account(key, "not supported", str(error))
        return {}
    leaves.mapped(key, f"{stage.name}.data.from", source["from"])
    leaves.harmless(f"{at}.dataset_name", "a class of oumi that reads the path; the format is detected")
    if item.get("subset") and source["from"].startswith("hub:"):
        source["subset"] = str(item["subset"])
    leaves.account(f"{at}.subset", "mapped", f"{stage.name}.data.subset")
    if item.get("split"):
        put_split(job, f"{at}.split", str(item["split"]), source, f"{stage.name}.data")
        if source.get("split") == "train":
            source.pop("split")
    leaves.account(f"{at}.split", "mapped", f"{stage.name}.data.split")
    if item.get("sample_count") is not None:
        source["max_rows"] = whole(leaves.mapped(f"{at}.sample_count", f"{stage.name}.data.max_rows"))
    if item.get("mixture_proportion") is not None:
        source["weight"] = number(leaves.mapped(f"{at}.mixture_proportion", f"{stage.name}.data.weight"))
    columns = {"prompt": options.get("prompt_column"), "completion": options.get("response_column")}
    if all(columns.values()):
        source |= {"format": "prompt_completion", "columns": {ours: str(word) for ours, word in columns.items()}}
        for word in ("prompt_column", "response_column"):
            leaves.mapped(f"{at}.dataset_kwargs.{word}", f"{stage.name}.data.columns")
    leaves.harmless(f"{at}.dataset_kwargs", "options of oumi's class of data; the format is detected")
    for word in ("shuffle", "seed", "shuffle_buffer_size", "trust_remote_code", "transform_num_workers"):
        leaves.harmless(f"{at}.{word}", LOADING)
    return source


def _map_masks(stage: StageDraft) -> None:
    """Map the tokens that have a loss, which oumi's collator decides."""
    leaves, at = stage.leaves, "data.train.collator_name"
    target = str(leaves.get("data.train.train_target", ""))
    if str(leaves.get(at, "")) == "text_completions_only_with_padding" or target:
        last = "FINAL" in target.upper() or "LAST" in target.upper()
        stage.put("train_on", "last" if last else "all", at)
        leaves.account(at, "mapped", f"{stage.name}.train_on")
        leaves.account("data.train.train_target", "mapped", f"{stage.name}.train_on")
    else:
        stage.put("train_on", "all", at)
        leaves.state_default(at, "loss on all tokens of messages", "the assistant's turns: train_on: all")
        leaves.harmless(at, "rows are padded or packed as needed")
    leaves.harmless("data.train.collator_kwargs", "the chat template tells where the assistant's turns begin")


def _map_pairs(stage: StageDraft, name: str) -> None:
    options = f"{T}trainer_kwargs"
    loss, beta, smoothing = (f"{options}.{key}" for key in ("loss_type", "beta", "label_smoothing"))
    if name == "kto":
        set_pair_losses(stage, [{"use": "kto"}], loss, beta, 0.1, smoothing)
        stage.leaves.unsupported(loss, "the loss kto")
    else:
        map_pair_loss(stage, loss, beta, 0.1, smoothing)
    if "max_length" not in stage.lines:
        stage.copy(f"{options}.max_length", "max_length", whole)
    for key in ("max_length", "max_prompt_length", "max_completion_length"):
        stage.leaves.unsupported(f"{options}.{key}", "there is one limit, on prompt and completion: `max_length`")


def _map_precision(stage: StageDraft) -> None:
    leaves = stage.leaves
    mixed = str(leaves.get(f"{T}mixed_precision_dtype", "none")).lower()
    if mixed in ("bf16", "fp16"):
        stage.put("bf16", True, f"{T}mixed_precision_dtype")
        status = "mapped" if mixed == "bf16" else "not supported"
        note = f"{stage.name}.bf16" if mixed == "bf16" else "there is no float16; the recipe has bf16"
        leaves.account(f"{T}mixed_precision_dtype", status, note)
    leaves.harmless(f"{T}mixed_precision_dtype", "is off")
    map_dtype(stage, f"{M}torch_dtype_str")


def _map_rl(job: Job, stage: StageDraft) -> None:
    """Map rewards, sampling and iterations."""
    leaves, g = job.leaves, f"{T}grpo."
    stage.put("algorithm", "grpo", f"{T}trainer_type")
    stage.put("rewards", map_rewards(job, f"{T}reward_functions", "trl"), f"{T}reward_functions")
    stage.copy(f"{g}max_completion_length", "max_completion_length", whole, 256)
    stage.copy(f"{g}temperature", "temperature", number, 0.9)
    map_sampling_of_trl(stage, g)
    leaves.unsupported(f"{g}max_prompt_length", "prompts are never cut; drop long ones in a curate stage")
    beta = leaves.get(f"{T}trainer_kwargs.beta", 0.0)
    terms = [{"use": "kl", "estimator": "k3", "coef": number(beta)}] if beta else []
    stage.put("loss_terms", terms, f"{T}trainer_kwargs.beta")
    leaves.account(f"{T}trainer_kwargs.beta", "mapped", f"{stage.name}.loss_terms.kl.coef")
    if leaves.has(f"{g}epsilon"):
        loss = {"use": "clipped", "epsilon": number(leaves.mapped(f"{g}epsilon", f"{stage.name}.policy_loss.epsilon"))}
        stage.put("policy_loss", loss, f"{g}epsilon")
    for leaf in list(leaves.values):
        if leaf.startswith((f"{g}vllm", f"{g}use_vllm")):
            leaves.harmless(leaf, "posttrain samples with torch; `engine: vllm` with vLLM")
    for key in ("remove_unused_columns", "log_completions"):
        leaves.harmless(f"{g}{key}", TRACKING)
    rows = whole(leaves.get(f"{T}per_device_train_batch_size", 8))
    update = rows * whole(leaves.get(f"{T}gradient_accumulation_steps", 1)) * job.devices
    put_rollouts(stage, update, whole(leaves.get(f"{g}num_generations", 8)), update, f"{T}per_device_train_batch_size")
    for key in (f"{T}per_device_train_batch_size", f"{T}gradient_accumulation_steps", f"{g}num_generations"):
        leaves.account(key, "mapped", f"{stage.name}.generation_batch_size, num_generations")
    steps, epochs = whole(leaves.get(f"{T}max_steps", -1)), number(leaves.get(f"{T}num_train_epochs", 3))
    put_iterations(job, stage, steps, epochs, f"{T}max_steps", f"{T}num_train_epochs", 1)


TOOL = Tool(
    "oumi",
    "oumi",
    KEYS,
    (
        "model.model_name",
        "data.train",
        "training.trainer_type",
        "training.enable_wandb",
        "peft.q_lora",
        "fsdp.enable_fsdp",
    ),
    convert,
    ("oumi",),
    HARMLESS
    | {
        **dict.fromkeys(
            (
                f"{T}output_dir {T}save_final_model {T}save_epoch {T}logging_dir "
                f"{T}telemetry.* {T}profiler.** {P}peft_save_mode"
            ).split(),
            FOLDERS,
        ),
        **dict.fromkeys(
            (
                f"{T}run_name {T}enable_wandb {T}enable_mlflow {T}enable_tensorboard {T}log_level {T}dep_log_level "
                f"{T}log_examples {T}logging_strategy {T}logging_first_step {T}include_performance_metrics "
                f"{T}include_alternative_mfu_metrics {T}log_model_summary {T}metrics_function"
            ).split(),
            TRACKING,
        ),
        **dict.fromkeys(
            (
                f"{M}attn_implementation {M}compile {M}device_map {M}enable_liger_kernel {T}compile "
                f"{T}gradient_checkpointing_kwargs.* {T}empty_device_cache_steps {T}per_device_eval_batch_size "
                f"{T}nccl_default_timeout_minutes {M}shard_for_eval"
            ).split(),
            SPEED,
        ),
        **dict.fromkeys(
            (
                f"{T}dataloader_num_workers {T}dataloader_persistent_workers {T}dataloader_prefetch_factor "
                f"{T}dataloader_main_process_only {T}ddp_find_unused_parameters {T}data_seed {T}label_ignore_index"
            ).split(),
            LOADING,
        ),
        **dict.fromkeys(f"{T}resume_from_checkpoint {T}try_resume_from_last_checkpoint".split(), RESUME),
        f"{M}trust_remote_code": "code of models is never run",
        f"{M}load_pretrained_weights": "weights are loaded; `kind: init` makes new ones",
        f"{M}tokenizer_pad_token": "the model's own",
        f"{P}lora_task_type": "found from the stage",
        f"{P}lora_bias": "biases are not trained",
        f"{T}use_deterministic": "runs are deterministic on the same machine",
        f"{T}full_determinism": "runs are deterministic on the same machine",
    },
    UNSUPPORTED
    | {
        f"{M}tokenizer_name": "a model is trained with its own tokenizer",
        f"{M}adapter_model": "name the adapter as `model`: it is merged into its base first",
        f"{M}freeze_layers": "parts of a model cannot be frozen; train adapters with `use_peft`",
        f"{P}lora_init_weights": "adapters begin at zero",
        f"{T}verl_config_overrides.**": "import verl's own configuration",
    },
)
"""The tool."""
