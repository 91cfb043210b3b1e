"""LLaMA-Factory's configurations, with the data sets of a `dataset_info.json` beside them."""

import json

from schemas.base import JsonObject
from schemas.importers.common.adapters import LoraNames, QuantisationNames, map_adapters, map_quantisation, use_bfloat16
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.factory_templates import find_template
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
from schemas.importers.common.optimisation import Names, map_batch, map_optimisation, map_precision, map_steps
from schemas.importers.common.pair_losses import LOSSES, map_pair_loss, set_pair_losses
from schemas.importers.common.references import refer
from schemas.importers.common.values import flag, mapping, number, whole, words
from schemas.importers.known_keys.llama_factory import KEYS
from schemas.importers.known_keys.transformers import KEYS as TRANSFORMERS
from schemas.source.foreign_keys import HARMLESS, SPEED, UNSUPPORTED

KINDS = {"pt": "sft", "sft": "sft", "rm": "reward_model", "dpo": "preference", "kto": "preference"}
NAMES = {"pt": "pretrain", "rm": "reward"}
LORA = LoraNames("lora_rank", "lora_alpha", "lora_dropout", "lora_target", "additional_target", rank=8, scale=0)
QUANTISATION = QuantisationNames(
    ("quantization_bit",),
    "quantization_type",
    "double_quantization",
    ("quantization_method", "quantization_device_map"),
    is_nested=True,
)
SHARDING = (("fsdp", "fsdp_config"), ("deepspeed",))
STANDARD = {"messages": ("messages", "conversations"), "system": ("system",), "tools": ("tools",)}
ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "history": "history", "system": "system"}
TAGS = ("role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag", "function_tag", "system_tag")


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    leaves = job.leaves
    method = str(leaves.get("stage", "sft"))
    if method not in KINDS:
        advice = "posttrain's kind rl needs `rewards`; write it as docs/rl.md shows"
        raise job.fail("stage", f"stage {method} has no counterpart", advice)
    kind = KINDS[method]
    stage = job.draft.stage(NAMES.get(method, method), kind)
    leaves.account("stage", "mapped", f"a stage of kind {kind}")
    map_model(job, stage, "model_name_or_path", "model_revision")
    leaves.unsupported("adapter_name_or_path", "name the adapter as `model`: it is merged into its base first")
    put_sources(stage, "data", _map_data(job, stage, method), "dataset")
    _map_held_out(job, stage, method)
    map_optimisation(stage, Names())
    _map_other_optimisers(stage)
    map_steps(stage, "num_train_epochs", "max_steps", 3.0)
    map_batch(stage, "per_device_train_batch_size", "gradient_accumulation_steps", job.devices, 8)
    stage.copy("cutoff_len", "max_length", whole, 2048)
    put_truncation(stage, "cutoff_len", True)
    leaves.state_default("cutoff_len", "prompt and response of a long row are both cut", "the end of it is cut off")
    if kind == "sft":
        _map_masks(stage, method)
    elif kind == "preference":
        _map_pairs(stage, method)
    _map_chat(stage)
    map_precision(stage, "bf16", "fp16")
    if leaves.get("pure_bf16"):
        use_bfloat16(stage, "pure_bf16")
        leaves.mapped("pure_bf16", f"{stage.name}.dtype: bfloat16")
    tuning = str(leaves.get("finetuning_type", "lora"))
    if not leaves.has("finetuning_type"):
        leaves.state_default("finetuning_type", "lora", "all weights; the recipe says use_peft: true")
    map_adapters(stage, LORA, tuning == "lora", "finetuning_type")
    known = tuning in ("lora", "full")
    leaves.account("finetuning_type", "mapped" if known else "not supported", "use_peft, or all weights without it")
    map_quantisation(stage, QUANTISATION, sharded=asks_for_shards(job, *SHARDING))
    map_reporting(stage)
    stage.lines.pop("gradient_checkpointing", None)
    if leaves.get("disable_gradient_checkpointing") is not True:
        stage.put("gradient_checkpointing", True, "disable_gradient_checkpointing")
    leaves.account("disable_gradient_checkpointing", "mapped", f"{stage.name}.gradient_checkpointing")
    map_evaluation(job, stage, "val_size", "eval_steps", "early_stopping_steps")
    map_group(job, stage, *SHARDING)
    map_seed(job, "seed", 42)


def _map_other_optimisers(stage: StageDraft) -> None:
    if stage.leaves.get("use_muon"):
        stage.put("optim", "muon", "use_muon")
        stage.leaves.mapped("use_muon", f"{stage.name}.optim: muon")
    for key in ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_llama_pro"):
        stage.leaves.unsupported(key, "optimisers are adamw, lion, muon, adafactor and their 8-bit forms")


def _map_masks(stage: StageDraft, method: str) -> None:
    leaves = stage.leaves
    packing = leaves.first("packing", "neat_packing")
    if leaves.has(packing):
        stage.copy(packing, "packing", flag)
    elif method == "pt":
        leaves.state_default("packing", True, "false; the recipe says packing: true")
        stage.put("packing", True, "default of packing")
    leaves.account("neat_packing", "mapped", "rows never attend to each other")
    leaves.account("packing", "mapped", f"{stage.name}.packing")
    if leaves.get("mask_history"):
        stage.put("train_on", "last", "mask_history")
    else:
        stage.put("train_on", "all", "mask_history")
    leaves.account("mask_history", "mapped", f"{stage.name}.train_on: {stage.get('train_on')}")
    leaves.unsupported("train_on_prompt", "prompts have no loss; plain texts (`format: text`) have one everywhere")


def _map_pairs(stage: StageDraft, method: str) -> None:
    leaves = stage.leaves
    if method == "kto":
        use = dict(LOSSES["kto"])
        for theirs, ours in (("kto_chosen_weight", "desirable_weight"), ("kto_rejected_weight", "undesirable_weight")):
            if leaves.has(theirs):
                use[ours] = number(leaves.mapped(theirs, f"{stage.name}.loss.{ours}"))
        set_pair_losses(stage, [use], "stage", "pref_beta", 0.1, "")
    else:
        map_pair_loss(stage, "pref_loss", "pref_beta", 0.1, "dpo_label_smoothing")
        loss = stage.get("loss")
        if isinstance(loss, dict) and loss["use"] == "simpo":
            gamma = leaves.get("simpo_gamma", 0.5)
            stage.put("loss", {**loss, "gamma": number(gamma)}, "pref_loss")
            leaves.account("simpo_gamma", "mapped", f"{stage.name}.loss.gamma")
        share = leaves.get("pref_ftx")
        if share and isinstance(stage.get("loss"), dict):
            stage.put("loss", [stage.get("loss"), {"use": "nll", "weight": number(share)}], "pref_loss, pref_ftx")
            leaves.mapped("pref_ftx", f"{stage.name}.loss: nll")
    if leaves.has("ref_model"):
        leaves.account("ref_model", "not supported", f"set stages.{stage.name}.reference to the model")
    leaves.unsupported("pref_bco_weight", "add `{use: bco, weight: …}` to the list of losses")


def _map_chat(stage: StageDraft) -> None:
    leaves = stage.leaves
    if leaves.has("template"):
        _map_template(stage)
    if leaves.has("default_system"):
        stage.copy("default_system", "system_prompt", str)
    thinking = leaves.get("enable_thinking")
    if thinking is not None:
        stage.put("chat_template_kwargs", {"enable_thinking": flag(thinking)}, "enable_thinking")
        leaves.mapped("enable_thinking", f"{stage.name}.chat_template_kwargs")
    leaves.harmless("tool_format", "tools are written by the model's template")


def _map_template(stage: StageDraft) -> None:
    """Write the chat template of a name, where it has the same text and loss for conversations without tools."""
    template = find_template(str(stage.leaves.get("template")))
    if stage.get("data") and '"tools"' in json.dumps(stage.get("data")):
        template = None
    if stage.name == NAMES["pt"]:
        stage.leaves.harmless("template", "plain texts have none")
    elif template is None:
        ours = "the model's own template; give another one as `chat_template: path:template.jinja`"
        stage.leaves.differs("template", ours)
    else:
        stage.put("chat_template", template, "template")
        stage.leaves.mapped("template", f"{stage.name}.chat_template")


def _map_data(job: Job, stage: StageDraft, method: str) -> list[Source]:
    """Return the sources that `dataset` names. Raise RecipeError if there are none."""
    leaves = job.leaves
    names = words(leaves.get("dataset", ""))
    if not names:
        raise job.fail(
            "dataset", "the configuration names no data", "add `dataset: name`, and dataset_info.json beside it"
        )
    sources = [_make_source(job, stage, name, method) for name in names]
    _map_shares(job, stage, sources)
    leaves.account("dataset", "mapped", ", ".join(source["from"] for source in sources))
    limit = leaves.get("max_samples")
    if limit is not None:
        for source in sources:
            source["max_rows"] = whole(limit)
        leaves.mapped("max_samples", f"{stage.name}.data.max_rows")
    leaves.harmless("dataset_dir", "the folder of dataset_info.json; files are named by their paths")
    return sources


def _map_held_out(job: Job, stage: StageDraft, method: str) -> None:
    """Map the data sets to evaluate on."""
    names = words(job.leaves.get("eval_dataset", ""))
    sources = [_make_source(job, stage, name, method, "eval_dataset") for name in names]
    limit = job.leaves.get("max_samples")
    for source in sources if limit is not None else ():
        source["max_rows"] = whole(limit)
    put_held_out(stage, sources, "eval_dataset")
    if sources:
        job.leaves.mapped("eval_dataset", f"{stage.name}.validation", ", ".join(source["from"] for source in sources))


def _map_shares(job: Job, stage: StageDraft, sources: list[Source]) -> None:
    leaves, weights = job.leaves, job.leaves.get("interleave_probs")
    listed = words(weights) if weights is not None else []
    if listed and len(listed) == len(sources):
        for source, weight in zip(sources, listed, strict=True):
            source["weight"] = number(weight)
        leaves.mapped("interleave_probs", f"{stage.name}.data.weight")
    leaves.unsupported("interleave_probs", "one weight for each data set")
    leaves.account(
        "mix_strategy", "mapped" if leaves.get("mix_strategy") == "concat" or listed else "harmless", "a mixture"
    )


def _make_source(job: Job, stage: StageDraft, name: str, method: str, key: str = "dataset") -> Source:
    """Return the source of a name: as dataset_info.json says, else a file or a data set of that name."""
    leaves, info = job.leaves, job.infos.get(name)
    if not isinstance(info, dict):
        place = leaves.get("dataset_dir")
        for candidate in (name, f"{place}/{name}", f"{place}/{name}.json", f"{place}/{name}.jsonl"):
            if job.places.find(candidate) is not None:
                return {"from": refer(candidate, job.places)}
        note = f"dataset_info.json has no `{name}`: give it with the configuration; taken as a file of that name"
        leaves.account(key, "not supported", note)
        return {"from": f"path:./{name}.json"}
    source: Source = {}
    if isinstance(info.get("hf_hub_url"), str):
        source["from"] = refer(info["hf_hub_url"], job.places)
    else:
        file = str(info.get("file_name", f"{name}.json"))
        place = leaves.get("dataset_dir", "data")
        existing = next((c for c in (f"{place}/{file}", file) if job.places.find(c) is not None), f"{place}/{file}")
        source["from"] = refer(existing, job.places)
    if isinstance(info.get("subset"), str) and source["from"].startswith("hub:"):
        source["subset"] = info["subset"]
    if isinstance(info.get("split"), str):
        put_split(job, "", info["split"], source, f"{stage.name}.data")
    if isinstance(info.get("num_samples"), int):
        source["max_rows"] = info["num_samples"]
    _map_columns(job, name, info, source, method)
    return source


def _map_columns(job: Job, name: str, info: JsonObject, source: Source, method: str) -> None:
    """Write the format and the columns of a data set."""
    columns = mapping(info.get("columns"))
    is_chat = str(info.get("formatting", "alpaca")) in ("sharegpt", "openai")
    if method == "pt":
        source["format"] = "text"
        text = columns.get("prompt", "text")
        source |= {"columns": {"text": text}} if text != "text" else {}
        return
    made: dict[str, str] = {}
    if info.get("ranking"):
        source["format"] = "preference"
        wanted = {
            "chosen": "chosen",
            "rejected": "rejected",
            "messages": "prompt",
            "prompt": "prompt",
            "system": "system",
        }
        fallback = {} if is_chat else {"prompt": "instruction"}
        made = {
            ours: str(word) for theirs, ours in wanted.items() if (word := columns.get(theirs, fallback.get(theirs)))
        }
        if "query" in columns and not is_chat:
            made["prompt"] = f"{{{made['prompt']}}}\n\n{{{columns['query']}}}"
    elif "kto_tag" in columns:
        source["format"] = "labels"
        made = {"label": str(columns["kto_tag"]), "prompt": str(columns.get("prompt", "instruction"))}
        made |= {"completion": str(columns.get("response", "output"))}
    elif is_chat:
        source["format"] = "messages"
        word = columns.get("messages", "conversations")
        made = {} if word in ("messages", "conversations") else {"messages": str(word)}
        made |= {ours: str(columns[ours]) for ours in ("system", "tools") if ours in columns}
    else:
        source["format"] = "alpaca"
        made = {ours: str(columns[theirs]) for theirs, ours in ALPACA.items() if theirs in columns}
    made = {ours: word for ours, word in made.items() if ours != word}
    if made:
        source["columns"] = made
    _note_tags(job, name, info)


def _note_tags(job: Job, name: str, info: JsonObject) -> None:
    tags = mapping(info.get("tags"))
    odd = [f"{tag}: {tags[tag]}" for tag in TAGS if tag in tags and str(tags[tag]) not in KNOWN_TAGS]
    if odd:
        ours = "messages have role and content, or from and value; rename the keys of the rows"
        job.leaves.state_default(f"dataset_info.{name}.tags", ", ".join(odd), ours)


KNOWN_TAGS = ("role", "content", "from", "value", "human", "gpt", "user", "assistant", "observation", "function_call")
KNOWN_TAGS += ("system", "tool")

TOOL = Tool(
    "llama-factory",
    "LLaMA-Factory",
    KEYS | TRANSFORMERS,
    ("stage", "finetuning_type", "cutoff_len", "template", "lora_rank", "lora_target", "dataset_dir", "pref_loss"),
    convert,
    ("llamafactory-cli", "src/train.py", "lmf"),
    HARMLESS
    | {
        "shift_attn": SPEED,
        "infer_backend": "sampling has its own engine",
        "upcast_layernorm": "weights are float32 unless `dtype` says otherwise",
        "lora_alpha": "no adapters",
        "ignore_pad_token_for_loss": "padding has no loss",
        "image_*": "images are not supported",
        "video_*": "images are not supported",
        "do_sample": "of sampling, which an evaluate stage has",
        "max_new_tokens": "of sampling, which an evaluate stage has",
        "predict_with_generate": "an evaluate stage samples",
        "freeze_vision_tower": "images are not supported",
        "freeze_multi_modal_projector": "images are not supported",
    },
    UNSUPPORTED
    | {
        "freeze_trainable_layers": "parts of a model cannot be frozen; train adapters with `use_peft`",
        "loraplus_lr_ratio": "one learning rate for both matrices of an adapter",
        "pissa_init": "adapters begin at zero",
        "create_new_adapter": "name the adapter as `model`: it is merged into its base first",
    },
)
"""The tool."""
