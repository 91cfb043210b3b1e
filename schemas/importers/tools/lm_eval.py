"""lm-eval's configurations of a run (`lm-eval run --config FILE`), and its command lines."""

from typing import Any

from schemas.base import JsonObject
from schemas.importers.common.draft import Line, StageDraft
from schemas.importers.common.job import Job, Tool
from schemas.importers.common.references import refer
from schemas.importers.common.values import flag, number, whole, words
from schemas.importers.known_keys.trees import list_keys
from schemas.source.foreign_keys import DEVICE, FOLDERS, SPEED, TRACKING, spread

KEYS = list_keys(
    {
        "": """
config model model_args tasks num_fewshot batch_size max_batch_size device limit samples use_cache cache_requests
check_integrity write_out log_samples output_path predict_only system_instruction apply_chat_template
fewshot_as_multiturn show_config include_path gen_kwargs verbosity wandb_args wandb_config_args hf_hub_log_args
trackio_args seed trust_remote_code confirm_run_unsafe_code metadata
""",
        "model_args": "**",
        "gen_kwargs": "**",
        "metadata": "**",
        "samples": "**",
        "wandb_args": "**",
        "wandb_config_args": "**",
        "hf_hub_log_args": "**",
        "trackio_args": "**",
    }
)

EXAMPLES = 1234
"""Seed by which lm-eval draws few-shot examples unless the configuration has another one."""


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    leaves = job.leaves
    stage = job.draft.stage("report", "evaluate")
    arguments = _split(leaves.get("model_args"))
    if "pretrained" not in arguments:
        raise job.fail("model_args", "the configuration names no model", "add `model_args: {pretrained: org/name}`")
    _map_model(job, stage, arguments)
    _map_tasks(job, stage)
    job.draft.seed = _read_seeds(job)[0]


def _read_seeds(job: Job) -> tuple[Line | None, int]:
    """Return the seed of the recipe and that of the examples: one for all, or the first and the last of four."""
    given = job.leaves.get("seed")
    try:
        values = [whole(value) for value in words(given)] if given is not None else []
    except ValueError as error:
        job.leaves.account("seed", "not supported", f"{error}; set `seed`, of the recipe and of the task")
        return None, EXAMPLES
    if not values:
        return None, EXAMPLES
    of_examples = values[0] if len(values) == 1 else values[3] if len(values) > 3 else EXAMPLES
    job.leaves.mapped("seed", "seed", f"{values[0]}, and {of_examples} of the examples")
    return Line(values[0], "seed"), of_examples


def _map_model(job: Job, stage: StageDraft, arguments: JsonObject) -> None:
    """Take over the model and its precision from `model_args`, which is a map or a text `key=value,…`."""
    leaves = job.leaves
    try:
        reference = refer(arguments.pop("pretrained"), job.places, arguments.pop("revision", None))
    except ValueError as error:
        raise job.fail("model_args", str(error), "name a folder or a model of the hub") from None
    stage.put("model", reference, "model_args.pretrained")
    kind = str(leaves.get("model", "hf"))
    known = kind in ("hf", "hf-auto", "huggingface", "vllm", "local")
    leaves.account("model", "mapped" if known else "not supported", "posttrain's own engine; `engine: vllm` for vLLM")
    if "enable_thinking" in arguments:
        switch = flag(arguments.pop("enable_thinking"))
        stage.put("chat_template_kwargs", {"enable_thinking": switch}, "model_args.enable_thinking")
        leaves.account("model_args.enable_thinking", "mapped", f"{stage.name}.chat_template_kwargs")
    dtype = str(arguments.pop("dtype", "")).removeprefix("torch.")
    if dtype in ("bfloat16", "bf16"):
        stage.put("dtype", "bfloat16", "model_args.dtype")
    ours = f"{stage.name}.model: {reference}"
    if not isinstance(leaves.get("model_args"), dict):
        odd = {key: value for key, value in arguments.items() if key not in MODEL_ARGUMENTS}
        note = f"; not supported: {', '.join(odd)}" if odd else ""
        leaves.account("model_args", "not supported" if odd else "mapped", ours + note)
        return
    for key in ("pretrained", "revision"):
        leaves.account(f"model_args.{key}", "mapped", ours)
    if dtype:
        same = dtype in ("bfloat16", "bf16", "float32", "auto")
        note = f"{stage.name}.dtype: {stage.get('dtype', 'float32')}"
        leaves.account("model_args.dtype", "mapped" if same else "default differs", note)
    for key in arguments:
        if key in MODEL_ARGUMENTS:
            leaves.harmless(f"model_args.{key}", SPEED)
        else:
            leaves.unsupported(f"model_args.{key}", "no option of posttrain's engine")


def _split(value: Any) -> JsonObject:
    """Return the arguments of a model as a map."""
    if isinstance(value, dict):
        return dict(value)
    pairs = (part.partition("=") for part in words(value)) if isinstance(value, str | list) else ()
    return {key.strip(): text.strip() for key, equals, text in pairs if equals}


def _map_tasks(job: Job, stage: StageDraft) -> None:
    leaves = job.leaves
    named = words(leaves.get("tasks", []))
    if not named:
        raise job.fail("tasks", "the configuration names no tasks", "add `tasks: [gsm8k]`")
    if any(isinstance(task, dict) for task in leaves.get("tasks", [])):
        raise job.fail("tasks", "tasks that are defined in the configuration", "write them to a folder: `include_path`")
    task: JsonObject = {"use": "lm_eval", "tasks": named}
    leaves.mapped("tasks", f"{stage.name}.tasks.tasks")
    limit = leaves.get("limit")
    if limit is not None and 0 < number(limit) < 1:
        leaves.account("limit", "not supported", "a share of the problems: set `limit` to a number")
    for key, ours, convert_value in (
        ("num_fewshot", "num_fewshot", whole),
        ("limit", "limit", whole),
        ("apply_chat_template", "apply_chat_template", bool),
        ("fewshot_as_multiturn", "fewshot_as_multiturn", bool),
    ):
        if leaves.has(key) and key not in leaves.entries:
            task[ours] = convert_value(leaves.mapped(key, f"{stage.name}.tasks.{ours}"))
    if leaves.has("include_path"):
        task["include_path"] = refer(leaves.get("include_path"), job.places)
        leaves.mapped("include_path", f"{stage.name}.tasks.include_path", task["include_path"])
    of_examples = _read_seeds(job)[1]
    if of_examples != EXAMPLES:
        task["seed"] = of_examples
    stage.put("tasks", [task], "tasks")
    if leaves.has("system_instruction"):
        stage.copy("system_instruction", "system_prompt", str)
    generation = _split(leaves.get("gen_kwargs"))
    if "max_gen_toks" in generation:
        stage.put("max_completion_length", whole(generation.pop("max_gen_toks")), "gen_kwargs.max_gen_toks")
        leaves.account("gen_kwargs.max_gen_toks", "mapped", f"{stage.name}.max_completion_length")
        if not generation:
            leaves.account("gen_kwargs", "mapped", f"{stage.name}.max_completion_length")
    leaves.unsupported("gen_kwargs", "samples are drawn as the tasks define")


MODEL_ARGUMENTS = [
    "parallelize",
    "tensor_parallel_size",
    "data_parallel_size",
    "gpu_memory_utilization",
    "attn_implementation",
    "device_map",
    "max_length",
    "max_model_len",
    "trust_remote_code",
    "use_fast_tokenizer",
    "batch_size",
    "device",
    "low_cpu_mem_usage",
]
"""Arguments of a model that change speed or memory only."""
TOOL = Tool(
    "lm-eval",
    "lm-eval",
    KEYS,
    ("model_args", "tasks", "num_fewshot", "apply_chat_template", "output_path"),
    convert,
    ("lm_eval", "lm-eval"),
    dict.fromkeys(["output_path", "use_cache"], FOLDERS)
    | spread(
        TRACKING,
        """
log_samples write_out show_config verbosity wandb_args wandb_config_args trackio_args hf_hub_log_args
wandb_args.* wandb_config_args.* trackio_args.* hf_hub_log_args.* metadata.**
""",
    )
    | spread(
        SPEED,
        """
batch_size max_batch_size cache_requests check_integrity
""",
    )
    | {"device": DEVICE, "trust_remote_code": "code of models is never run", "config": "the file itself"},
    {
        "samples": "`limit` takes the first problems of each task",
        "predict_only": "answers are always scored",
        "confirm_run_unsafe_code": "programs that a model wrote run only in the sandbox",
    },
)
"""The tool."""
