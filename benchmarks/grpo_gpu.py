"""A GRPO step at the shapes of real models, in bfloat16 on a GPU, against TRL's GRPOTrainer with its own generation.

    python benchmarks/grpo_gpu.py [--shape 0.5b|1.5b|tiny] [--prompts 64] [--prompt 512] [--completion 512] [--steps 3]
                                  [--rounds 1] [--sides ours trl trl_batching] [--device cuda]

Models are randomly initialised, with the sizes of Qwen2.5; the end of sequence has no logit, so that lengths are fixed.
Each side runs in its own process. One JSON line gives medians over all steps after each process's first, and the
floating-point operations of a step (6 · parameters per trained token, 2 · parameters per generated or prefilled token,
and attention) divided by the seconds and by the card's own rate, measured with a matrix product. `--device cpu --shape
tiny` tests the script.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from grpo_sides import ALGORITHM, GENERATIONS, TRL_SETTINGS, make_clock, time_stage
from timing import between

LR = 1e-6
SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1.5b": {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def words(length: int, count: int, vocabulary: int) -> list[str]:
    """Random prompts of `length` tokens."""
    import random

    source = random.Random(length)
    return [" ".join(f"t{source.randrange(vocabulary)}" for _ in range(length)) for _ in range(count)]


def even(rows: list[dict[str, Any]], completions: list[str]) -> list[float]:
    """Reward: share of even tokens."""
    return [sum(word[-1:] in "02468" for word in text.split()) / max(len(text.split()), 1) for text in completions]


def make_model(folder: Path, options: argparse.Namespace) -> None:
    """A model of the shape with a tokenizer whose words are `t<id>`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

    shape = SHAPES[options.shape]
    size, room = shape["vocab_size"], options.prompt + options.completion
    plain = Tokenizer(models.WordLevel({f"t{i}": i for i in range(size)} | {"<eos>": size}, unk_token="t0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>", pad_token="t0")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.model_max_length = room
    torch.manual_seed(0)
    ids = {"eos_token_id": size, "pad_token_id": 0, "bos_token_id": None}
    head_dim = shape["hidden_size"] // shape["num_attention_heads"]
    config = Qwen3Config(**shape, head_dim=head_dim, max_position_embeddings=room, tie_word_embeddings=True, **ids)
    AutoModelForCausalLM.from_config(config, dtype=dtype(options)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def dtype(options: argparse.Namespace) -> Any:
    """bfloat16 on a GPU, float32 without one."""
    import torch

    return torch.bfloat16 if options.device == "cuda" else torch.float32


def run_ours(folder: Path, options: argparse.Namespace) -> list[float]:
    """Seconds of each step of the rl task, everything included."""
    from schemas.stages.rl import Rl

    stage = Rl.model_validate(
        {
            "kind": "rl",
            "model": "m",
            "prompts": "p",
            "rewards": ["grpo_gpu:even"],
            "learning_rate": LR,
            **ALGORITHM,
            "max_steps": options.steps,
            "generation_batch_size": options.prompts * GENERATIONS,
            "num_generations": GENERATIONS,
            "max_completion_length": options.completion,
            "max_tokens_per_micro_batch": options.tokens,
            "engine": {"use": "torch", "max_slots": options.prompts * GENERATIONS},
            "log_trajectories": 0.0,
            "dtype": str(dtype(options)).removeprefix("torch."),
            "save_steps": options.steps,
        }
    )
    texts = words(options.prompt, options.prompts * options.steps, SHAPES[options.shape]["vocab_size"])
    return [wall for wall, _ in time_stage(stage, folder, texts, os.cpu_count() or 1)]


def run_trl(folder: Path, options: argparse.Namespace, *, batching: bool) -> list[float]:
    """Seconds of each step of GRPOTrainer, with plain generation or with transformers' continuous batching."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    ends: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        size = options.prompts * GENERATIONS
        per_pass = max(
            GENERATIONS, options.tokens // (options.prompt + options.completion) // GENERATIONS * GENERATIONS
        )
        per_pass = min(per_pass, size)
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=options.device == "cpu",
            bf16=options.device == "cuda",
            per_device_train_batch_size=per_pass,
            gradient_accumulation_steps=size // per_pass,
            max_completion_length=options.completion,
            max_steps=options.steps,
            learning_rate=LR,
            **TRL_SETTINGS,
            **({"use_transformers_continuous_batching": True} if batching else {}),
        )
        texts = words(options.prompt, options.prompts * options.steps, SHAPES[options.shape]["vocab_size"])
        GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=dtype(options)),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=lambda completions, **rest: even([], completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            callbacks=[make_clock(ends)],
        ).train()
    return [wall for wall, _ in between(ends)]


SIDES = {
    "ours": run_ours,
    "trl": lambda folder, options: run_trl(folder, options, batching=False),
    "trl_batching": lambda folder, options: run_trl(folder, options, batching=True),
}


def work(options: argparse.Namespace) -> float:
    """Floating-point operations of a step that share prompts: what has to be done, not what a side does."""
    shape = SHAPES[options.shape]
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    head = hidden // shape["num_attention_heads"]
    attention = hidden * hidden * 2 + 2 * hidden * head * shape["num_key_value_heads"]
    body = layers * (attention + 3 * hidden * shape["intermediate_size"])
    both = body + shape["vocab_size"] * hidden
    prompts, outputs = options.prompts * options.prompt, options.prompts * GENERATIONS * options.completion
    pairs = options.prompts * (options.prompt**2 / 2)
    pairs += options.prompts * GENERATIONS * options.completion * (options.prompt + options.completion / 2)
    once = 2 * body * prompts + 2 * both * outputs + 4 * layers * hidden * pairs
    return once + 3 * once  # sampling, then forward and twice that backward


def rate_of(options: argparse.Namespace) -> float:
    """Floating-point operations a second of a large matrix product in the precision used."""
    import torch

    size = 8192 if options.device == "cuda" else 1024
    a = torch.randn(size, size, device=options.device, dtype=dtype(options))
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    rates = []
    for _ in range(8):
        wait()
        began = time.perf_counter()
        a @ a
        wait()
        rates.append(2 * size**3 / (time.perf_counter() - began))
    return statistics.median(rates)


def spawn(side: str, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run one side in a process of its own; what fails is reported, not hidden."""
    here = Path(__file__).resolve()
    environment = {**os.environ, "PYTHONPATH": f"{here.parents[1]}:{here.parent}", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(here), *arguments, "--side", side, "--folder", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def child(options: argparse.Namespace) -> None:
    """One side in this process; prints a line of JSON."""
    import torch

    seconds = SIDES[options.side](options.folder, options)
    peak = torch.cuda.max_memory_allocated() / 2**20 if options.device == "cuda" else 0.0
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="0.5b")
    for name, default in (("prompts", 64), ("prompt", 512), ("completion", 512), ("steps", 3), ("rounds", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, default=32768, help="token budget of one training pass")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.side:
        child(options)
        return
    report: dict[str, Any] = {
        "shape": options.shape,
        "workload": f"{options.prompts}x{GENERATIONS}, prompt {options.prompt}, output {options.completion}",
    }
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch), options)
        runs_by_side: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
        for _ in range(options.rounds):
            for side, runs in runs_by_side.items():
                runs.append(spawn(side, Path(scratch), sys.argv[1:]))
    rate, needed = rate_of(options), work(options)
    report |= {"matrix_tflops": round(rate / 1e12, 3), "step_tflop": round(needed / 1e12, 4)}
    for side, runs in runs_by_side.items():
        if wrong := [run["error"] for run in runs if "error" in run]:
            report[side] = {"error": wrong[0]}
            continue
        seconds = statistics.median(s for run in runs for s in run["seconds"][1:])
        share = round(needed / seconds / rate, 4)
        report[side] = {"seconds": round(seconds, 3), "of_matrix_rate": share, "peak_mb": round(runs[0]["peak_mb"])}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
