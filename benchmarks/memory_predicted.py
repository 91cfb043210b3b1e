"""Memory predicted by `posttrain plan --memory` compared with real steps, on data as long as their settings allow.

    python benchmarks/memory_predicted.py [--cases sft_rows rl_groups ...] [--device cpu|cuda] [--list]

Every case is a separate process that runs three optimiser steps (two iterations, one evaluation) of the real task. One
JSON line: for each case the prediction, the peak of the tensors (counted operation by operation on a CPU, the
allocator's `max_memory_allocated` on a GPU), and on a CPU the increase of the process's resident memory (VmHWM − VmRSS
before it).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NARROW = {
    "model_type": "qwen3",
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
}
WIDE = {
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 24,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
WINDOWED = {
    "model_type": "mistral",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "sliding_window": 64,
}
MIXTURE = {
    "model_type": "mixtral",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
FALCON_H1 = {
    "model_type": "falcon_h1",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_d_ssm": 256,
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": 64,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
BILLION = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
RL = {
    "advantage": ["center"],
    "ratio": "token",
    "policy_loss": "clipped",
    "loss_aggregation": "token_mean",
    "rewards": ["memory_predicted:length"],
    "logits_processors": ["memory_predicted:endless"],
    "max_steps": 2,
}
QLORA = {"use_peft": True, "load_in_4bit": True, "use_bnb_nested_quant": True, "lora_r": 4}


@dataclass(frozen=True)
class Case:
    """A step: its kind, its model, the tokens of a row and of its prompt, and its settings."""

    kind: str
    config: dict[str, Any]
    length: int
    prompt: int
    settings: dict[str, Any] = field(default_factory=dict)
    vocabulary: int = 68
    rows: int = 32


CASES = {
    "sft_rows": Case("sft", NARROW, 128, 4, {"per_device_train_batch_size": 16}),
    "sft_long": Case("sft", LLAMA, 700, 4, {"per_device_train_batch_size": 4}),
    "sft_logits": Case("sft", NARROW, 64, 4, {"per_device_train_batch_size": 64}, vocabulary=3000, rows=128),
    "sft_lora": Case("sft", WIDE, 128, 4, {"per_device_train_batch_size": 4, "use_peft": True}),
    "sft_qlora": Case("sft", WIDE, 128, 4, {"per_device_train_batch_size": 1, **QLORA}),
    "sft_accumulated": Case("sft", WIDE, 64, 4, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}),
    "sft_bfloat16": Case("sft", NARROW, 700, 4, {"per_device_train_batch_size": 4, "dtype": "bfloat16"}),
    "sft_mixed": Case("sft", NARROW, 700, 4, {"per_device_train_batch_size": 4, "bf16": True}),
    "sft_checkpointing": Case("sft", WIDE, 128, 4, {"per_device_train_batch_size": 8, "gradient_checkpointing": True}),
    "sft_windows": Case("sft", WINDOWED, 400, 4, {"per_device_train_batch_size": 4}),
    "rl_groups": Case(
        "rl",
        NARROW,
        128,
        64,
        {
            **RL,
            "generation_batch_size": 32,
            "num_generations": 8,
            "max_completion_length": 64,
            "max_tokens_per_micro_batch": 1200,
        },
    ),
    "rl_paths": Case(
        "rl",
        WIDE,
        116,
        16,
        {**RL, "generation_batch_size": 64, "max_completion_length": 100, "max_tokens_per_micro_batch": 300},
    ),
    "rl_sampling": Case(
        "rl",
        NARROW,
        316,
        16,
        {**RL, "generation_batch_size": 64, "max_completion_length": 300, "max_tokens_per_micro_batch": 400},
    ),
    "sft_vocabulary": Case(
        "sft", {**NARROW, "tie_word_embeddings": True}, 64, 4, {"per_device_train_batch_size": 8}, vocabulary=150_000
    ),
    "rl_vocabulary": Case(
        "rl",
        {**NARROW, "tie_word_embeddings": True},
        32,
        8,
        {**RL, "generation_batch_size": 64, "max_completion_length": 24, "max_tokens_per_micro_batch": 400},
        vocabulary=150_000,
    ),
    "sft_moe": Case("sft", MIXTURE, 128, 4, {"per_device_train_batch_size": 8}),
    "sft_states": Case("sft", FALCON_H1, 128, 4, {"per_device_train_batch_size": 8}),
    "sft_linear_attention": Case("sft", QWEN3_NEXT, 128, 4, {"per_device_train_batch_size": 8}),
    "rl_states": Case(
        "rl",
        FALCON_H1,
        64,
        16,
        {**RL, "generation_batch_size": 32, "max_completion_length": 48, "max_tokens_per_micro_batch": 400},
    ),
    "reward_model": Case("reward_model", NARROW, 128, 64, {"per_device_train_batch_size": 16}, rows=64),
    "reward_model_long": Case("reward_model", LLAMA, 256, 128, {"per_device_train_batch_size": 4}),
    "evaluate": Case("evaluate", NARROW, 216, 16, {"max_completion_length": 200, "temperature": 1.0}),
    "evaluate_prompts": Case("evaluate", WIDE, 216, 200, {"max_completion_length": 16, "temperature": 1.0}),
}
"""What runs on a CPU in seconds."""
REAL_CASES = {
    "sft_qlora_smollm2": Case(
        "sft", SMOLLM2, 256, 16, {"per_device_train_batch_size": 4, **QLORA}, vocabulary=49152, rows=12
    ),
    "sft_smollm2": Case("sft", SMOLLM2, 256, 16, {"per_device_train_batch_size": 4}, vocabulary=49152, rows=12),
    "rl_smollm2": Case(
        "rl",
        SMOLLM2,
        128,
        64,
        {
            **RL,
            "generation_batch_size": 16,
            "num_generations": 8,
            "max_completion_length": 64,
            "max_tokens_per_micro_batch": 1200,
        },
        vocabulary=49152,
    ),
    "evaluate_smollm2": Case(
        "evaluate", SMOLLM2, 264, 200, {"max_completion_length": 64, "temperature": 1.0}, vocabulary=49152
    ),
}
"""The shape of SmolLM2-135M with random weights: minutes, and up to 8 GB."""
RECIPE = ROOT / "recipes" / "smollm2.yaml"
RECIPE_CASE = "rl_smollm2_recipe"
"""Step `better` of the shipped recipe (GRPO with LoRA in `bf16`, 64 completions, twelve iterations), which starts from
the GGUF file itself: minutes, and up to 6 GB."""
GPU_CASES = {
    "sft_1b": Case(
        "sft", BILLION, 2048, 16, {"per_device_train_batch_size": 2, "dtype": "bfloat16"}, vocabulary=32000, rows=8
    ),
    "sft_1b_checkpointing": Case(
        "sft",
        BILLION,
        2048,
        16,
        {"per_device_train_batch_size": 4, "dtype": "bfloat16", "gradient_checkpointing": True},
        vocabulary=32000,
        rows=16,
    ),
    "rl_1b": Case(
        "rl",
        BILLION,
        1024,
        512,
        {
            **RL,
            "generation_batch_size": 32,
            "max_completion_length": 512,
            "max_tokens_per_micro_batch": 4608,
            "dtype": "bfloat16",
        },
        vocabulary=32000,
    ),
}
"""What wants a GPU."""

NAMES = [*CASES, *REAL_CASES, RECIPE_CASE, *GPU_CASES]


def length(rows: list[dict[str, Any]], completions: list[str]) -> list[float]:
    """Some reward."""
    return [float(len(text) % 7) for text in completions]


def endless(logits_BV: Any, place_B: Any) -> Any:
    """Never the end of a sequence, whose id is 1."""
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = float("-inf")
    return logits_BV


def letters(case: Case) -> str:
    """An alphabet that makes the vocabulary: six special tokens come with it."""
    return "abcdefghijklmnopqrstuvwxyz"[: case.vocabulary - 6] + "".join(
        chr(0x20000 + i) for i in range(case.vocabulary - 32)
    )


def stage_of(case: Case, device: str) -> Any:
    """The stage of a case."""
    from pydantic import TypeAdapter

    from schemas.stages.union import Stage

    given = {"kind": case.kind, "model": "m", "data": "d", "prompts": "d", "max_steps": 3, **case.settings}
    if case.kind == "evaluate":
        given["num_bootstrap"] = 100
    wrong = {"sft": ("prompts",), "reward_model": ("prompts",), "rl": ("data",), "evaluate": ("data", "max_steps")}
    given = {key: value for key, value in given.items() if key not in wrong[case.kind]}
    if device != "cpu":
        given["resources"] = {"num_gpus": 1}
    return TypeAdapter(Stage).validate_python(given)


def predicted(case: Case, device: str = "cpu") -> int:
    """Bytes that the product predicts for a case."""
    from flows.planning.memory import find_estimate
    from flows.planning.memory_demand import StepDemand
    from flows.planning.memory_models import KnownModel, complete_config, find_shape

    stage = stage_of(case, device)
    shape, pass_type = find_shape(complete_config({**case.config, "vocab_size": 6 + len(letters(case))}))
    known = KnownModel(shape, case.length, pass_type=pass_type)
    demand = StepDemand(stage.model_dump(), stage.resources, {"model": known}, prompt=case.prompt)
    if case.kind == "evaluate":
        demand.settings["limit"] = case.rows
    return max(place.peak.total for place in find_estimate(case.kind)(demand))


def rows_of(case: Case) -> tuple[str, list[dict[str, Any]]]:
    """The kind of the table, and rows that are as long as they may be."""
    answer = case.length - case.prompt
    kind = {"sft": "chat", "reward_model": "preference_pairs"}.get(case.kind, "prompts")
    rows = []
    for i in range(case.rows):
        own = "".join("abcdefghij"[int(digit)] for digit in f"{i:03d}")[-max(1, case.prompt - 3) :]
        text = own.rjust(case.prompt - 3, "a")
        row: dict[str, Any] = {"id": str(i), "prompt": [{"role": "user", "content": text}], "metadata": "{}"}
        if kind == "preference_pairs":
            sides = {side: [{"role": "assistant", "content": c * (answer - 1)}] for side, c in SIDES}
            rows.append({**row, **sides, "margin": 1.0})
            continue
        row |= {"answer": "", "family": "letters"}
        messages = [{"role": "assistant", "content": "b" * (answer - 1)}]
        rows.append({**row, "completion": messages} if kind == "chat" else row)
    return kind, rows


SIDES = (("chosen", "b"), ("rejected", "c"))


def measured(case: Case, device: str = "cpu") -> dict[str, int]:
    """Bytes that tensors and (on a CPU) the process took while the real task ran, in this process."""
    import importlib

    from memory_peak import peak_of

    from learning.data.rows import write_rows
    from schemas.stages.init import Init
    from tasks import init
    from tasks.context import Context

    with tempfile.TemporaryDirectory() as scratch:

        def context(name: str, **inputs: Path) -> Context:
            folders = [Path(scratch, name, part) for part in ("out", "checkpoints")]
            for folder in folders:
                folder.mkdir(parents=True)
            return Context(
                inputs, *folders, seed=3, num_threads=int(os.environ.get("OMP_NUM_THREADS", "1")), device=device
            )

        made = context("model")
        tokenizer = {"use": "characters", "alphabet": letters(case)}
        given = {"kind": "init", "config": case.config, "tokenizer": tokenizer, "max_length": case.length}
        init.run(Init.model_validate(given), made)
        data = Path(scratch, "data")
        data.mkdir()
        write_rows(data, *rows_of(case))
        inputs = {"model": made.folder / "outputs" / "model", "data": data, "prompts": data}
        run, before = importlib.import_module(f"tasks.{case.kind}").run, resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
        with peak_of(device) as peak:
            run(stage_of(case, device), context("step", **inputs))
        return {"measured": peak.bytes, "resident": max(0, resident("VmHWM") - before)}


def predicted_of_recipe() -> int:
    """Bytes that `plan --memory` predicts for the step of the recipe."""
    from flows.planning.memory import estimate_memory
    from flows.planning.preflight import sketch_plan
    from lineage.layout import Layout
    from schemas.recipe.load import load_recipe

    needs = estimate_memory(sketch_plan(load_recipe(RECIPE)), Layout(ROOT))
    return max(place.peak.total for need in needs if need.step == "better" for place in need.places)


def measured_of_recipe() -> dict[str, int]:
    """Bytes that tensors and the process took while the step ran, as `measured`."""
    from memory_peak import peak_of

    from lineage.layout import Layout
    from lineage.sources.resolve import find_source
    from schemas.recipe.load import load_recipe
    from tasks import rl, synthesize
    from tasks.context import Context

    recipe = load_recipe(RECIPE)
    with tempfile.TemporaryDirectory() as scratch:

        def context(name: str, **inputs: Path) -> Context:
            folders = [Path(scratch, name, part) for part in ("out", "checkpoints")]
            for folder in folders:
                folder.mkdir(parents=True)
            return Context(inputs, *folders, seed=7, num_threads=1)

        made = context("exercises")
        synthesize.run(recipe.stages["exercises"], made)
        source = next(port.source for port in recipe.ports("tuned") if port.path == "model")
        inputs = {"model": find_source(source, Layout(ROOT), recipe.folders).folder}
        inputs["prompts"] = made.folder / "outputs" / "prompts"
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
        with peak_of("cpu") as peak:
            rl.run(recipe.stages["better"], context("better", **inputs))
        return {"measured": peak.bytes, "resident": max(0, resident("VmHWM") - before)}


def resident(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def spawn(name: str, device: str) -> dict[str, Any]:
    """A case in a process of its own."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "benchmarks")))
    command = [sys.executable, __file__, "--case", name, "--device", device]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def one(name: str, device: str) -> dict[str, Any]:
    """Prediction, measurement and their ratio."""
    if name == RECIPE_CASE:
        comparison = {"predicted": predicted_of_recipe(), **measured_of_recipe()}
    else:
        case = {**CASES, **REAL_CASES, **GPU_CASES}[name]
        comparison = {"predicted": predicted(case, device), **measured(case, device)}
    return {**comparison, "ratio": round(comparison["predicted"] / comparison["measured"], 3)}


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cases", nargs="+", choices=NAMES)
    parser.add_argument("--case", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        say(json.dumps(one(options.case, options.device)))
        return
    default = [*CASES, *REAL_CASES, RECIPE_CASE] if options.device == "cpu" else [*GPU_CASES]
    names = options.cases or default
    cases = {name: spawn(name, options.device) for name in names}
    say(json.dumps({"benchmark": "memory_predicted", "device": options.device, "cases": cases}))


if __name__ == "__main__":
    main()
