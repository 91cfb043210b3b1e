"""Time and peak memory of one GRPO step beside TRL's GRPOTrainer: same weights, prompts, batch, optimiser and loss.

    python benchmarks/grpo_step.py [--quick] [--rounds 3] [--steps 4] [--threads 2]

First it proves that both sides give the same gradient on the same ragged batch. Then every side runs in a process of
its own, the two taking turns, and one JSON line per workload gives medians over all steps after each process's first.
The model is 1.8M parameters, randomly initialised; the end-of-sequence token has no logit, so that lengths are fixed.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

WORKLOADS = {"short": {"prompt": 8, "completion": 64}, "long": {"prompt": 256, "completion": 32}}
GROUPS, GENERATIONS, VOCABULARY = 16, 8, 128
ALPHABET = [chr(c) for c in range(32, 127)] + [chr(c) for c in range(192, 192 + VOCABULARY - 95)]
LR, EPSILON = 1e-4, 1e-4


def letters(rows: list[dict[str, Any]], completions: list[str]) -> list[float]:
    """Reward: share of vowels."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in completions]


def make_model(folder: Path) -> None:
    """A Qwen2-shaped model with a tokenizer of one id per character."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    plain = Tokenizer(models.WordLevel({c: i for i, c in enumerate(ALPHABET)} | {"<eos>": VOCABULARY}, unk_token=" "))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    plain.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>", pad_token=ALPHABET[0])
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.model_max_length = 512
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=VOCABULARY,
        pad_token_id=0,
        bos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def texts(length: int, count: int) -> list[str]:
    """Random prompts of `length` characters."""
    source = random.Random(length)
    return ["".join(source.choices(ALPHABET[33:90], k=length)) for _ in range(count)]


def run_ours(folder: Path, work: dict[str, int], steps: int, threads: int) -> list[float]:
    """Seconds of each step of the rl task, everything included."""
    from learning.rows import write_rows
    from schemas.stages.rl import Rl
    from tasks.context import Context
    from tasks.rl import run

    ends: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch, "prompts")
        prompts.mkdir()
        messages = [[{"role": "user", "content": text}] for text in texts(work["prompt"], GROUPS * steps)]
        rest = {"answer": "", "family": "letters", "metadata": "{}"}
        write_rows(prompts, "prompts", [{"id": str(i), "prompt": m, **rest} for i, m in enumerate(messages)])
        stage = Rl.model_validate(
            {
                "kind": "rl",
                "model": "model",
                "prompts": "prompts",
                "rewards": ["grpo_step:letters"],
                "advantage": ["center", {"use": "scale", "epsilon": EPSILON}],
                "ratio": "token",
                "surrogate": {"use": "clipped", "epsilon": 0.2},
                "weigh": "token_mean",
                "generation_batch_size": GROUPS * GENERATIONS,
                "num_generations": GENERATIONS,
                "max_completion_length": work["completion"],
                "max_steps": steps,
                "learning_rate": LR,
            }
        )
        inputs = {"model": folder, "prompts": prompts}
        context = Context(
            inputs,
            Path(scratch, "out"),
            Path(scratch, "checkpoints"),
            seed=0,
            num_threads=threads,
            on_progress=lambda event: ends.append(time.perf_counter()) if "total" in event else None,
        )
        context.folder.mkdir()
        began = time.perf_counter()
        run(stage, context)
    return [b - a for a, b in zip([began, *ends], ends, strict=False)]


def trl_trainer(folder: Path, scratch: str, work: dict[str, int], steps: int, callbacks: list[Any]) -> Any:
    """GRPOTrainer set up like for like."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=scratch,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=GROUPS * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=work["completion"],
        max_steps=steps,
        loss_type="dapo",
        scale_rewards="group",
        beta=0.0,
        num_iterations=1,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        learning_rate=LR,
        lr_scheduler_type="constant",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, **rest: letters([], completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": texts(work["prompt"], GROUPS * steps)}),
        callbacks=callbacks,
    )


def run_trl(folder: Path, work: dict[str, int], steps: int, threads: int) -> list[float]:
    """Seconds of each step of GRPOTrainer."""
    import torch
    from transformers import TrainerCallback

    torch.set_num_threads(threads)
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as scratch:
        trl_trainer(folder, scratch, work, steps, [Clock()]).train()
    return [b - a for a, b in pairwise(ends)]


def gradient_gap(folder: Path) -> float:
    """Largest difference between the two sides' gradients on one ragged, off-policy batch, over the largest entry."""
    import torch
    from transformers import AutoModelForCausalLM

    from learning.algorithm import Algorithm
    from learning.batch import single_turn
    from learning.engines.protocol import Generation
    from learning.lookup import Bound
    from learning.policy_loss import micro_loss, with_dropped, with_weights
    from learning.ratios import token
    from learning.surrogates import clipped
    from learning.weighing import token_mean

    torch.manual_seed(0)
    lengths = torch.randint(1, 40, (4, GENERATIONS)).tolist()
    prompts = [torch.randint(1, VOCABULARY, (n,)).tolist() for n in (8, 30, 17, 3)]
    groups = [
        [
            Generation(torch.randint(1, VOCABULARY, (n,)).tolist(), (0.3 * torch.randn(n) - 4.85).tolist(), "stop")
            for n in ns
        ]
        for ns in lengths
    ]
    advantage_P = torch.randn(4 * GENERATIONS)
    batch = with_dropped(single_turn(prompts, groups), False)
    batch = batch.with_tokens(advantage=advantage_P[batch.path_T].double())
    slots = (Bound("token", token, {}), Bound("clipped", clipped, {}), Bound("token_mean", token_mean, {}))
    how = Algorithm((), *slots, ())
    model = AutoModelForCausalLM.from_pretrained(folder)
    micro_loss(how, model, with_weights(how, batch, 0, 40), step=0, temperature=1.0)[0].backward()

    flat = [(p, g) for p, group in zip(prompts, groups, strict=True) for g in group]
    wide, long = max(map(len, prompts)), max(map(max, lengths))
    left = torch.tensor([[0] * (wide - len(p)) + [1] * len(p) for p, _ in flat])
    right = torch.tensor([[1] * len(g.token_ids) + [0] * (long - len(g.token_ids)) for _, g in flat])
    inputs = {
        "prompt_ids": torch.tensor([[0] * (wide - len(p)) + p for p, _ in flat]),
        "prompt_mask": left,
        "completion_ids": torch.tensor([g.token_ids + [0] * (long - len(g.token_ids)) for _, g in flat]),
        "completion_mask": right,
        "advantages": advantage_P,
        "old_per_token_logps": torch.tensor([g.logprobs + [0.0] * (long - len(g.token_ids)) for _, g in flat]),
        "num_items_in_batch": right.sum(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trl_trainer(folder, scratch, WORKLOADS["short"], 1, [])
        trainer.current_gradient_accumulation_steps = 1
        trainer._compute_loss(trainer.model, inputs).backward()
    pairs = list(zip(model.parameters(), trainer.model.parameters(), strict=True))
    largest = max(float(p.grad.abs().max()) for p, _ in pairs)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs) / largest


def child(side: str, workload: str, folder: Path, steps: int, threads: int) -> None:
    """One side in this process; prints a line of JSON."""
    if side == "gradient":
        print(json.dumps({"gap": gradient_gap(folder)}))
        return
    seconds = {"ours": run_ours, "trl": run_trl}[side](folder, WORKLOADS[workload], steps, threads)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


def spawn(side: str, workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run one side in a process of its own."""
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--side", side, "--workload", workload, "--folder", str(folder)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides, taking turns."""
    seconds: dict[str, list[float]] = {"ours": [], "trl": []}
    peaks: dict[str, list[float]] = {"ours": [], "trl": []}
    for _ in range(options.rounds):
        for side in seconds:
            told = spawn(side, workload, folder, options)
            seconds[side] += told["seconds"][1:]
            peaks[side].append(told["peak_mb"])
    ours, trl = (statistics.median(seconds[side]) for side in ("ours", "trl"))
    return {
        "workload": f"{GROUPS}x{GENERATIONS}, prompt {WORKLOADS[workload]['prompt']}, "
        f"output {WORKLOADS[workload]['completion']}",
        "ours_seconds": round(ours, 3),
        "trl_seconds": round(trl, 3),
        "speedup": round(trl / ours, 2),
        "ours_peak_mb": round(max(peaks["ours"])),
        "trl_peak_mb": round(max(peaks["trl"])),
        "steps": len(seconds["ours"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of two steps: a smoke test, not a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side")
    parser.add_argument("--steps", type=int, default=4, help="steps per process; the first is not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["ours", "trl", "gradient"], help=argparse.SUPPRESS)
    parser.add_argument("--workload", default="short", choices=list(WORKLOADS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 2
    if options.side:
        child(options.side, options.workload, options.folder, options.steps, options.threads)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder)
        gap = spawn("gradient", "short", folder, options)["gap"]
        print(json.dumps({"gradient_gap": gap, "allowed": 1e-5}), flush=True)
        if gap > 1e-5:
            raise SystemExit("the two sides do not compute the same gradient; timings would mean nothing")
        for workload in WORKLOADS:
            print(json.dumps(compare(workload, folder, options)), flush=True)


if __name__ == "__main__":
    main()
