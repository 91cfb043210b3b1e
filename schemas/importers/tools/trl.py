"""TRL's configurations: `trl sft | dpo | kto | grpo | rloo | reward --config FILE`."""

from schemas.base import JsonObject
from schemas.importers.common.adapters import LoraNames, QuantisationNames, map_adapters, map_quantisation
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import (
    Job,
    Source,
    Tool,
    asks_for_shards,
    map_evaluation,
    map_group,
    map_model,
    map_reporting,
    map_seed,
    put_held_out,
    put_sources,
    put_split,
    put_truncation,
)
from schemas.importers.common.optimisation import (
    Names,
    map_batch,
    map_dtype,
    map_optimisation,
    map_precision,
    map_steps,
)
from schemas.importers.common.pair_losses import map_pair_loss, set_pair_losses
from schemas.importers.common.references import refer
from schemas.importers.common.templates import map_template
from schemas.importers.common.values import flag, number, whole
from schemas.importers.known_keys.transformers import KEYS as TRANSFORMERS
from schemas.importers.known_keys.trl import KEYS
from schemas.importers.tools.trl_rl import map_rl
from schemas.source.foreign_keys import HARMLESS, SPEED, UNSUPPORTED
from schemas.suggestions import find_nearest

TRAINERS = {
    "sft": "sft",
    "dpo": "preference",
    "kto": "preference",
    "reward": "reward_model",
    "grpo": "rl",
    "rloo": "rl",
}
RATES = {"sft": 2e-5, "dpo": 1e-6, "kto": 1e-6, "reward": 1e-4, "grpo": 1e-6, "rloo": 1e-6}
LORA = LoraNames(dropped=0.05)
QUANTISATION = QuantisationNames(
    ("load_in_4bit", "load_in_8bit"),
    "bnb_4bit_quant_type",
    "use_bnb_nested_quant",
    ("bnb_4bit_quant_storage", "bnb_4bit_compute_dtype"),
)
SHARDING = (("fsdp", "fsdp_config"), ("deepspeed",))


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    leaves = job.leaves
    trainer = find_trainer(job)
    kind = TRAINERS[trainer]
    stage = job.draft.stage(trainer, kind)
    map_model(job, stage, "model_name_or_path", "model_revision")
    sources = map_data(job, stage)
    if isinstance(column := leaves.get("dataset_prompt_column"), str):
        for source in sources:
            source["columns"] = {"prompt": column}
        leaves.mapped("dataset_prompt_column", f"{stage.name}.prompts.columns.prompt")
    stage.copy("system_prompt", "system_prompt", str)
    named = leaves.first("dataset_name", "datasets", "dataset_mixer", "dataset_mixture")
    put_sources(stage, "prompts" if kind == "rl" else "data", sources, named)
    map_optimisation(stage, Names(rate=RATES[trainer]))
    if kind == "rl":
        map_rl(job, stage, "", "per_device_train_batch_size", "num_train_epochs", is_rloo=trainer == "rloo")
    else:
        map_steps(stage, "num_train_epochs", "max_steps", 3.0)
        map_batch(stage, "per_device_train_batch_size", "gradient_accumulation_steps", job.devices, 8)
        map_length(stage)
    if trainer == "sft":
        _map_sft(stage)
    elif kind == "preference":
        _map_pairs(stage, trainer)
    elif kind == "reward_model":
        stage.copy("center_rewards_coefficient", "center_rewards_coefficient", number)
    if leaves.has("chat_template_path"):
        stage.put("chat_template", refer(leaves.get("chat_template_path"), job.places), "chat_template_path")
        leaves.mapped("chat_template_path", f"{stage.name}.chat_template")
    if leaves.has("chat_template"):
        map_template(stage, "chat_template")
    if kind == "rl":
        stage.copy("chat_template_kwargs", "chat_template_kwargs")
    map_precision(stage, "bf16", "fp16", default=True)
    map_dtype(stage, leaves.first("dtype", "torch_dtype"))
    if kind == "rl" and not leaves.has("bf16"):
        leaves.harmless("bf16", "the default")
    map_adapters(stage, LORA, bool(leaves.get("use_peft")), "use_peft")
    leaves.account("use_peft", "mapped", f"{stage.name}.use_peft")
    map_quantisation(stage, QUANTISATION, sharded=asks_for_shards(job, *SHARDING))
    leaves.harmless("lora_task_type", "found from the stage")
    map_reporting(stage)
    if leaves.get("eval_strategy") in ("steps", "epoch"):
        put_held_out(stage, _make_held_out(job, sources), "dataset_test_split")
    if kind != "rl":
        map_evaluation(job, stage, leaves.first("test_split_size", "dataset_mixture.test_split_size"))
    leaves.harmless("dataset_test_split", "nothing is evaluated: `eval_strategy` is off")
    for key in ("eval_strategy", "eval_steps", "num_generations_eval"):
        leaves.harmless(key, "give `eval_prompts` to evaluate in training")
    map_group(job, stage, *SHARDING)
    map_seed(job, "seed", 42)


def _make_held_out(job: Job, sources: list[Source]) -> list[Source]:
    """Return the rows that TRL evaluates on: another split of its only data set of the hub."""
    if len(sources) != 1 or not job.leaves.has("dataset_name") or not sources[0]["from"].startswith("hub:"):
        return []
    held_out = {key: value for key, value in sources[0].items() if key != "split"}
    put_split(job, "dataset_test_split", str(job.leaves.get("dataset_test_split", "test")), held_out, "validation")
    return [held_out]


def find_trainer(job: Job) -> str:
    """Return the trainer: as named, by its own keys, by the name of the file, or by the first row. Else `sft`."""
    leaves = job.leaves
    named = [word.rpartition("/")[2].removesuffix(".py") for word in job.words]
    for word in named:
        if word in TRAINERS:
            return word
    if leaves.has("normalize_advantages") or leaves.has("reward_clip_range"):
        return "rloo"
    for trainer, keys in (
        ("grpo", ("reward_funcs", "num_generations", "epsilon", "scale_rewards", "reward_model_name_or_path")),
        ("kto", ("desirable_weight", "undesirable_weight")),
        ("reward", ("center_rewards_coefficient",)),
        ("dpo", ("beta", "loss_weights", "precompute_ref_log_probs", "f_divergence_type", "ref_model_sync_steps")),
        ("sft", ("packing", "assistant_only_loss", "completion_only_loss", "dataset_text_field")),
    ):
        if any(leaves.has(key) for key in keys):
            return trainer
    file = leaves.file.lower().rpartition("/")[2]
    return next((trainer for trainer in TRAINERS if trainer in file), "sft")


def map_data(job: Job, stage: StageDraft) -> list[Source]:
    """Return the sources of rows. Raise RecipeError if the input names none."""
    leaves = job.leaves
    sources: list[Source] = []
    if leaves.has("dataset_name"):
        sources.append(
            _make_source(job, stage, "dataset_name", {"subset": "dataset_config", "split": "dataset_train_split"})
        )
    listed = leaves.get("datasets")
    for index, item in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(item, dict):
            at = f"datasets.{index}"
            names = {"subset": f"{at}.name", "split": f"{at}.split"}
            if isinstance(item.get("data_files"), str):
                leaves.harmless(f"{at}.path", "the file says what it is")
                source = _make_source(job, stage, f"{at}.data_files", names)
            else:
                source = _make_source(job, stage, f"{at}.path", names)
                _map_files(job, at, source)
            leaves.harmless(f"{at}.columns", "columns that a format does not read are kept as metadata")
            leaves.unsupported(f"{at}.fraction", "set `max_rows` of the source")
            sources.append(source)
    mixer = leaves.get("dataset_mixer")
    for name in mixer if isinstance(mixer, dict) else ():
        sources.append({"from": refer(name, job.places)})
        _take_share(job, stage, f"dataset_mixer.{name}", sources[-1])
    listed = leaves.get("dataset_mixture.datasets")
    for index, _ in enumerate(listed if isinstance(listed, list) else []):
        at = f"dataset_mixture.datasets.{index}"
        source = _make_source(job, stage, f"{at}.id", {"subset": f"{at}.config", "split": f"{at}.split"})
        _take_share(job, stage, f"{at}.weight", source)
        leaves.harmless(f"{at}.columns", "columns that a format does not read are kept as metadata")
        sources.append(source)
    leaves.harmless("dataset_mixture.seed", "rows are drawn with the recipe's seed")
    made = [source for source in sources if source]
    if not made:
        raise job.fail(
            "dataset_name", "the configuration names no data that can be read", "add `dataset_name: org/name`"
        )
    _map_text_field(stage, made)
    return made


def _take_share(job: Job, stage: StageDraft, key: str, source: Source) -> None:
    """Write the share of the rows of a source that is trained on, as a part of its split."""
    share = job.leaves.get(key, 1)
    percent = 100 * number(share)
    if share == 1:
        job.leaves.mapped(key, f"{stage.name}.data", "all its rows")
    elif percent == int(percent) and 0 < percent < 100:
        split = source.get("split", "train") if source.get("from", "").startswith("hub:") else ""
        source["split"] = f"{split}[:{int(percent)}%]"
        job.leaves.mapped(key, f"{stage.name}.data.split", "the first rows; theirs are drawn")
    job.leaves.account(key, "not supported", f"the share {share} of the rows: set `max_rows` of the source")


def _make_source(job: Job, stage: StageDraft, key: str, names: dict[str, str]) -> Source:
    leaves = job.leaves
    try:
        source: Source = {"from": refer(leaves.get(key), job.places)}
    except ValueError as error:
        leaves.account(key, "not supported", str(error))
        return {}
    leaves.mapped(key, f"{stage.name}.data.from", source["from"])
    for ours, theirs in names.items():
        value = leaves.get(theirs)
        if value is None:
            leaves.harmless(theirs, "is the default")
        elif ours == "split":
            put_split(job, theirs, str(value), source, f"{stage.name}.data")
            if source.get("split") == "train":
                source.pop("split")
        elif source["from"].startswith("hub:"):
            source[ours] = str(value)
            leaves.account(theirs, "mapped", f"data.{ours}")
        else:
            leaves.harmless(theirs, "a file has no parts")
    return source


def _map_files(job: Job, at: str, source: Source) -> None:
    files = job.leaves.get(f"{at}.data_files")
    if isinstance(files, dict):
        files = files.get("train")
    one = files[0] if isinstance(files, list) and len(files) == 1 else files
    if isinstance(one, str):
        source["from"] = refer(one, job.places)
        for unused in ("split", "subset"):
            source.pop(unused, None)
        job.leaves.mapped(f"{at}.data_files", "data.from", source["from"])
    job.leaves.unsupported(f"{at}.data_files", "add a source for each file, or one pattern `path:folder/*.jsonl`")
    job.leaves.unsupported(f"{at}.data_dir", "name the folder: `from: path:folder`, or `subset` of a data set")


def _map_text_field(stage: StageDraft, sources: list[Source]) -> None:
    field = stage.leaves.get("dataset_text_field")
    if field in (None, "text"):
        stage.leaves.harmless("dataset_text_field", "is the default")
    elif field == "messages":
        stage.leaves.mapped("dataset_text_field", f"{stage.name}.data: messages are detected")
    else:
        for source in sources:
            source |= {"format": "text", "columns": {"text": str(field)}}
        stage.leaves.mapped("dataset_text_field", f"{stage.name}.data.columns.text")


def map_length(stage: StageDraft) -> None:
    """Take over the longest row."""
    key = stage.leaves.first("max_length", "max_seq_length")
    stage.copy(key, "max_length", whole, 1024)
    for other in ("max_length", "max_seq_length", "max_prompt_length", "max_completion_length", "max_target_length"):
        stage.leaves.account(other, "not supported", "there is one limit, on prompt and completion: `max_length`")
    put_truncation(stage, "truncation_mode", stage.leaves.get("truncation_mode", "keep_start") == "keep_start")


def _map_sft(stage: StageDraft) -> None:
    """Map packing and the tokens that have a loss."""
    leaves = stage.leaves
    stage.copy("packing", "packing", flag)
    for key in ("packing_strategy", "eval_packing"):
        leaves.harmless(key, "rows are packed whole, and never attend to each other")
    if leaves.get("assistant_only_loss"):
        stage.put("train_on", "all", "assistant_only_loss")
        leaves.mapped("assistant_only_loss", f"{stage.name}.train_on: all")
    else:
        stage.put("train_on", "all", "assistant_only_loss")
        leaves.account(
            "assistant_only_loss", "default differs", "theirs: all tokens of messages; ours: the assistant's"
        )
        if not leaves.has("assistant_only_loss"):
            ours = "only the assistant's turns of messages have a loss: train_on: all"
            leaves.state_default("assistant_only_loss", False, ours)
    if leaves.get("completion_only_loss") is False:
        leaves.account(
            "completion_only_loss", "not supported", "prompts have no loss; use `format: text` for plain texts"
        )
    leaves.account("completion_only_loss", "mapped", f"{stage.name}.train_on: completions have a loss")
    kind = leaves.get("loss_type")
    if kind not in (None, "nll"):
        leaves.account("loss_type", "not supported", "the loss of sft is the cross-entropy of its tokens")
    leaves.account("loss_type", "mapped", "the cross-entropy of the tokens")


def _map_pairs(stage: StageDraft, trainer: str) -> None:
    leaves = stage.leaves
    if trainer == "kto":
        use: JsonObject = {"use": "kto"}
        for key in ("desirable_weight", "undesirable_weight"):
            if leaves.has(key):
                use[key] = number(leaves.mapped(key, f"{stage.name}.loss.{key}"))
        set_pair_losses(stage, [use], "loss_type", "beta", 0.1, "")
        leaves.account("loss_type", "mapped" if leaves.get("loss_type") == "kto" else "not supported", "the loss kto")
    else:
        map_pair_loss(stage, "loss_type", "beta", 0.1, "label_smoothing")
        divergence = leaves.get("f_divergence_type")
        if divergence is not None:
            known = {"reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"}
            word = find_nearest(str(divergence), known) or "reverse_kl"
            leaves.account(
                "f_divergence_type", "mapped" if word == "reverse_kl" else "not supported", "loss.divergence"
            )
    weights = leaves.get("loss_weights")
    uses = stage.get("loss")
    if isinstance(weights, list) and isinstance(uses, list) and len(weights) == len(uses):
        stage.put("loss", [{**use, "weight": number(w)} for use, w in zip(uses, weights, strict=True)], "loss_type")
        leaves.mapped("loss_weights", f"{stage.name}.loss.weight")
    leaves.harmless("disable_dropout", "there is none in a model unless its config says so")
    for key in ("precompute_ref_log_probs", "precompute_ref_batch_size"):
        leaves.harmless(key, SPEED)
    advice = "the reference stays; a loop of stages with `previous` renews it"
    for key in ("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"):
        if leaves.get("sync_ref_model"):
            leaves.account(key, "not supported", advice)
        leaves.harmless(key, "the reference stays")


TOOL = Tool(
    "trl",
    "TRL",
    KEYS | TRANSFORMERS,
    ("model_name_or_path", "dataset_name", "reward_funcs", "assistant_only_loss", "lora_target_modules", "use_peft"),
    convert,
    ("trl",),
    HARMLESS
    | {
        "dataset_kwargs": "rows are converted by their format",
        "ignore_bias_buffers": "nothing in a recipe depends on it",
        "eos_token": "the model's own",
        "pad_token": "the model's own",
        "disable_dropout": "there is none in a model unless its config says so",
        "ds3_gather_for_generation": SPEED,
        "config": "the file itself",
    },
    UNSUPPORTED
    | {
        "sync_ref_model": "write `references: {name: {sync_steps: …, mixup_alpha: …}}`",
        "rpo_alpha": "add the loss `nll` with a `weight` to the list of losses",
    },
)
"""The tool."""
