"""Time and peak memory of one SFT step compared with TRL's SFTTrainer: same weights, rows, batch size and optimiser.

    python benchmarks/sft_step.py [--quick] [--rounds 3] [--steps 12] [--threads 2]

First it checks that both sides give the same gradient on the same ragged batch. Then each side runs in its own process,
all taking turns, and one JSON line gives tokens per wall second and per CPU second (medians over a process's steps
after its first two; of these the median, smallest and largest over the rounds) and the ratio ours / TRL. On a machine
with other load, use one thread and CPU seconds. TRL runs padded, padded with rows of similar length together, and
packed; the fastest of the three is compared (its padding-free collator needs flash attention, which has no CPU kernel).
Since packing puts other rows into a step, sides are compared by tokens, without padding. The model has 1.8M parameters;
rows have 16 to 256 tokens, three quarters of which have a loss.
"""

import argparse
import json
import os
import random
import resource
import statistics
import string
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from timing import between, now, spread

ROWS, LONGEST, LR, WARM_UP = 16, 256, 1e-4, 2
TRL = {
    "trl_padded": {},
    "trl_by_length": {"train_sampling_strategy": "group_by_length"},
    "trl_packed": {"packing": True},
}


SHAPE = {
    "model_type": "qwen2",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "tie_word_embeddings": True,
}


def make_model(folder: Path) -> Path:
    """A model with random weights and a tokenizer of one id per character."""
    from schemas.stages.init import Init
    from tasks.context import Context
    from tasks.init import run

    run(Init(kind="init", config=SHAPE, max_length=LONGEST), Context({}, folder, folder, seed=0))
    return folder / "outputs" / "model"


def conversations(count: int) -> list[tuple[str, str]]:
    """Random prompts and completions; a token per character, and four of the chat template."""
    source = random.Random(0)
    results = []
    for _ in range(count):
        length = source.randint(16, LONGEST) - 4
        text = "".join(source.choices(string.ascii_letters, k=length))
        results.append((text[: length // 4], text[length // 4 :]))
    return results


def encoded(folder: Path, count: int) -> list[Any]:
    """The same as token ids."""
    from transformers import AutoTokenizer

    from learning.data.examples import encode_rows

    rows = [
        {"prompt": [{"role": "user", "content": p}], "completion": [{"role": "assistant", "content": c}]}
        for p, c in conversations(count)
    ]
    return list(encode_rows(AutoTokenizer.from_pretrained(folder), rows, LONGEST).kept)


def run_ours(folder: Path, steps: int, threads: int) -> list[tuple[float, float, int]]:
    """Wall seconds, CPU seconds and tokens of each step of the sft task, everything included."""
    from learning.data.rows import write_rows
    from schemas.stages.sft import Sft
    from tasks.context import Context
    from tasks.sft import run

    ends: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "data")
        data.mkdir()
        rest = {"answer": "", "family": "letters", "metadata": "{}"}
        rows = [
            {
                "id": str(i),
                "prompt": [{"role": "user", "content": p}],
                "completion": [{"role": "assistant", "content": c}],
                **rest,
            }
            for i, (p, c) in enumerate(conversations(ROWS * steps))
        ]
        write_rows(data, "chat", rows)
        keys = {"max_steps": steps, "learning_rate": LR, "per_device_train_batch_size": ROWS, "max_length": LONGEST}
        stage = Sft.model_validate({"kind": "sft", "model": "m", "data": "d", "logging_steps": 1, **keys})
        context = Context(
            {"model": folder, "data": data},
            Path(scratch, "out"),
            Path(scratch, "checkpoints"),
            seed=0,
            num_threads=threads,
            on_progress=lambda event: "total" in event and ends.append(now()),
        )
        context.folder.mkdir()
        run(stage, context)
        tokens = tokens_of_steps(folder, steps)
    return [(*taken, n) for taken, n in zip(between(ends), tokens[1:], strict=True)]


def tokens_of_steps(folder: Path, steps: int) -> list[int]:
    """Tokens that our side trains on in each step."""
    from learning.data.epochs import Epochs

    lengths = [len(example.ids) for example in encoded(folder, ROWS * steps)]
    epochs = Epochs(lengths, per_pass=ROWS, passes=1, seed=0)
    return [sum(lengths[row] for rows in epochs.at(step) for row in rows) for step in range(steps)]


def trl_trainer(folder: Path, scratch: str, steps: int, options: dict[str, Any], callbacks: list[Any]) -> Any:
    """SFTTrainer set up like for like."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        output_dir=scratch,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=ROWS,
        max_length=LONGEST,
        max_steps=steps,
        learning_rate=LR,
        lr_scheduler_type="constant",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
        completion_only_loss=True,
        **options,
    )
    examples = encoded(folder, ROWS * steps)
    columns = {
        "input_ids": [e.ids for e in examples],
        "completion_mask": [[0] * e.num_given + [1] * e.num_learned for e in examples],
    }
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        args=config,
        train_dataset=Dataset.from_dict(columns),
        callbacks=callbacks,
    )


def run_trl(folder: Path, steps: int, threads: int, options: dict[str, Any]) -> list[tuple[float, float, int]]:
    """Wall seconds, CPU seconds and tokens of each step of SFTTrainer."""
    import torch
    from transformers import TrainerCallback

    torch.set_num_threads(threads)
    ends: list[tuple[float, float]] = []
    tokens: list[int] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            ends.append(now())

    with tempfile.TemporaryDirectory() as scratch:
        trainer = trl_trainer(folder, scratch, steps, options, [Clock()])
        loss = trainer.compute_loss

        def counted(model: Any, inputs: dict[str, Any], *args: Any, **rest: Any) -> Any:
            mask = inputs.get("attention_mask")
            tokens.append(int(inputs["input_ids"].numel() if mask is None else mask.sum()))
            return loss(model, inputs, *args, **rest)

        trainer.compute_loss = counted
        trainer.train()
    return [(*taken, n) for taken, n in zip(between(ends), tokens[1:], strict=True)]


def gradient_gap(folder: Path) -> float:
    """Largest difference between the two sides' gradients on one ragged batch, over the largest entry."""
    from transformers import AutoModelForCausalLM

    from learning.models.crossentropy import compute_packed_loss

    examples = encoded(folder, ROWS)
    learned = sum(example.num_learned for example in examples)
    model = AutoModelForCausalLM.from_pretrained(folder)
    (compute_packed_loss(model, examples) / learned).backward()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trl_trainer(folder, scratch, 1, {}, [])
        inputs = trainer.data_collator(list(trainer.train_dataset))
        trainer.compute_loss(trainer.model, inputs, num_items_in_batch=learned).backward()
    pairs = list(zip(model.parameters(), trainer.model.parameters(), strict=True))
    largest = max(float(p.grad.abs().max()) for p, _ in pairs)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs) / largest


def child(side: str, folder: Path, steps: int, threads: int) -> None:
    """One side in this process; prints a line of JSON."""
    if side == "gradient":
        print(json.dumps({"gap": gradient_gap(folder)}))
        return
    measured = run_ours(folder, steps, threads) if side == "ours" else run_trl(folder, steps, threads, TRL[side])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"steps": measured, "peak_mb": peak}))


def spawn(side: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run one side in a process of its own."""
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All sides, taking turns; a ratio is that of the medians of one round, against TRL's fastest setting over all."""
    sides = ["ours", *TRL]
    rounds: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    peaks: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side in sides:
            measured = spawn(side, folder, options)
            wall, cpu = zip(*((n / w, n / c) for w, c, n in measured["steps"][WARM_UP - 1 :]), strict=True)
            rounds[side].append((statistics.median(wall), statistics.median(cpu)))
            peaks[side].append(measured["peak_mb"])
    results: dict[str, Any] = {"workload": f"{ROWS} rows of 16 to {LONGEST} tokens"}
    for place, clock in enumerate(("second", "cpu_second")):
        speeds = {side: [medians[place] for medians in rounds[side]] for side in sides}
        best = max(TRL, key=lambda side: statistics.median(speeds[side]))
        ratios = [a / b for a, b in zip(speeds["ours"], speeds[best], strict=True)]
        results |= {f"{side}_tokens_per_{clock}": spread(speeds[side]) for side in sides}
        results |= {f"trl_best_per_{clock}": best, f"speedup_per_{clock}": spread(ratios)}
    return {**results, **{f"{side}_peak_mb": round(max(peaks[side])) for side in sides}}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of four steps: a smoke test, not a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side")
    parser.add_argument("--steps", type=int, default=12, help=f"steps per process; the first {WARM_UP} are not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["ours", *TRL, "gradient"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 4
    if options.side:
        child(options.side, options.folder, options.steps, options.threads)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_model(Path(scratch))
        gap = spawn("gradient", folder, options)["gap"]
        print(json.dumps({"gradient_gap": gap, "allowed": 1e-5}), flush=True)
        if gap > 1e-5:
            raise SystemExit("the two sides do not compute the same gradient; timings would mean nothing")
        print(json.dumps(compare(folder, options)), flush=True)


if __name__ == "__main__":
    main()
