"""The two sides of benchmarks/grpo_step.py, with equal settings: one model, one reward, one batch."""

import random
import tempfile
from pathlib import Path
from typing import Any

from timing import between, now

WORKLOADS = {
    "short": {"prompt": 8, "completion": 64, "groups": 16},
    "long": {"prompt": 256, "completion": 32, "groups": 16},
    "longest": {"prompt": 64, "completion": 2048, "groups": 1},
}
GENERATIONS, VOCABULARY, MAX_LENGTH = 8, 128, 2304
ALPHABET = [chr(c) for c in range(32, 127)] + [chr(c) for c in range(192, 192 + VOCABULARY - 95)]
LR, EPSILON = 1e-4, 1e-4
ALGORITHM = {
    "advantage": ["center", {"use": "scale", "epsilon": EPSILON}],
    "ratio": "token",
    "policy_loss": {"use": "clipped", "epsilon": 0.2},
    "loss_aggregation": "token_mean",
}
"""The algorithm of our stage that equals `TRL_SETTINGS`."""
TRL_SETTINGS = {
    "gradient_checkpointing": False,
    "num_generations": GENERATIONS,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "beta": 0.0,
    "num_iterations": 1,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "lr_scheduler_type": "constant",
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "seed": 0,
}
"""Settings of GRPOConfig that do not depend on the workload."""


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
    tokenizer.model_max_length = MAX_LENGTH
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=MAX_LENGTH,
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


def our_stage(work: dict[str, int], steps: int) -> Any:
    """The rl stage that is like for like."""
    from schemas.stages.rl import Rl

    sizes = {
        "generation_batch_size": work["groups"] * GENERATIONS,
        "num_generations": GENERATIONS,
        "max_completion_length": work["completion"],
        "max_steps": steps,
    }
    ports = {"kind": "rl", "model": "model", "prompts": "prompts", "rewards": ["grpo_sides:letters"]}
    return Rl.model_validate({**ports, **ALGORITHM, **sizes, "learning_rate": LR})


def run_ours(folder: Path, work: dict[str, int], steps: int, threads: int) -> list[tuple[float, float]]:
    """Wall and CPU seconds of each step of the rl task, everything included."""
    prompts = texts(work["prompt"], work["groups"] * steps)
    return time_stage(our_stage(work, steps), folder, prompts, threads)


def time_stage(stage: Any, folder: Path, texts: list[str], threads: int) -> list[tuple[float, float]]:
    """Run an rl stage on these prompts; return wall and CPU seconds of each step."""
    from learning.data.rows import write_rows
    from tasks.context import Context
    from tasks.rl import run

    ends: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch, "prompts")
        prompts.mkdir()
        messages = [[{"role": "user", "content": text}] for text in texts]
        rest = {"answer": "", "family": "all", "metadata": "{}"}
        write_rows(prompts, "prompts", [{"id": str(i), "prompt": m, **rest} for i, m in enumerate(messages)])
        context = Context(
            {"model": folder, "prompts": prompts},
            Path(scratch, "out"),
            Path(scratch, "checkpoints"),
            seed=0,
            num_threads=threads,
            on_progress=lambda event: ends.append(now()) if "total" in event else None,
        )
        context.folder.mkdir()
        ends.append(now())
        run(stage, context)
    return between(ends)


def make_clock(ends: list[tuple[float, float]]) -> Any:
    """Return a callback of a trainer that appends the times at which training begins and each step ends."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            ends.append(now())

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            ends.append(now())

    return Clock()


def trl_trainer(folder: Path, scratch: str, work: dict[str, int], steps: int, callbacks: list[Any]) -> Any:
    """GRPOTrainer set up like for like."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=scratch,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=work["groups"] * GENERATIONS,
        max_completion_length=work["completion"],
        max_steps=steps,
        learning_rate=LR,
        **TRL_SETTINGS,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, **rest: letters([], completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": texts(work["prompt"], work["groups"] * steps)}),
        callbacks=callbacks,
    )


def run_trl(folder: Path, work: dict[str, int], steps: int, threads: int) -> list[tuple[float, float]]:
    """Wall and CPU seconds of each step of GRPOTrainer."""
    import torch

    torch.set_num_threads(threads)
    ends: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        trl_trainer(folder, scratch, work, steps, [make_clock(ends)]).train()
    return between(ends)


def ragged() -> tuple[list[list[int]], list[list[Any]], Any]:
    """Prompts, groups of completions sampled by some other policy, and an advantage per completion."""
    import torch

    from learning.samples.engine_protocol import Generation

    torch.manual_seed(0)
    lengths = torch.randint(1, 40, (4, GENERATIONS)).tolist()
    prompts = [torch.randint(1, VOCABULARY, (n,)).tolist() for n in (8, 30, 17, 3)]

    def completion(n: int) -> Generation:
        behaviour = 0.3 * torch.randn(n) - 4.85
        return Generation(torch.randint(1, VOCABULARY, (n,)).tolist(), behaviour.tolist(), "stop")

    groups = [[completion(n) for n in group] for group in lengths]
    return prompts, groups, torch.randn(4 * GENERATIONS)


def our_gradient(folder: Path) -> list[Any]:
    """Gradient of each parameter on the ragged batch."""
    from transformers import AutoModelForCausalLM

    from learning.algorithm.composition import bind_algorithm
    from learning.algorithm.loss import micro_loss, with_dropped, with_weights
    from learning.batch.batch_layout import single_turn

    prompts, groups, advantage_P = ragged()
    algorithm = bind_algorithm(our_stage(WORKLOADS["short"], 1), {})
    batch = with_dropped(single_turn(prompts, groups), False)
    batch = with_weights(algorithm, batch.with_tokens(advantage=advantage_P[batch.path_T].double()), 0, 40)
    model = AutoModelForCausalLM.from_pretrained(folder)
    micro_loss(algorithm, model, batch, step=0, temperature=1.0)[0].backward()
    return [p.grad for p in model.parameters()]


def trl_gradient(folder: Path) -> list[Any]:
    """The same, of GRPOTrainer's loss on the batch padded as it pads."""
    import torch

    prompts, groups, advantage_P = ragged()
    flat = [(p, g) for p, group in zip(prompts, groups, strict=True) for g in group]
    wide, long = max(len(p) for p, _ in flat), max(len(g.token_ids) for _, g in flat)

    def right(row: list[Any]) -> list[Any]:
        return row + [0] * (long - len(row))

    mask = torch.tensor([right([1] * len(g.token_ids)) for _, g in flat])
    inputs = {
        "prompt_ids": torch.tensor([[0] * (wide - len(p)) + p for p, _ in flat]),
        "prompt_mask": torch.tensor([[0] * (wide - len(p)) + [1] * len(p) for p, _ in flat]),
        "completion_ids": torch.tensor([right(g.token_ids) for _, g in flat]),
        "completion_mask": mask,
        "advantages": advantage_P,
        "old_per_token_logps": torch.tensor([right(g.logprobs) for _, g in flat]),
        "num_items_in_batch": mask.sum(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        trainer = trl_trainer(folder, scratch, WORKLOADS["short"], 1, [])
        trainer.current_gradient_accumulation_steps = 1
        trainer._compute_loss(trainer.model, inputs).backward()
    return [p.grad for p in trainer.model.parameters()]


def gradient_gap(folder: Path) -> float:
    """Largest difference between the two sides' gradients on one ragged, off-policy batch, over the largest entry."""
    pairs = list(zip(our_gradient(folder), trl_gradient(folder), strict=True))
    return max(float((a - b).abs().max()) for a, b in pairs) / max(float(a.abs().max()) for a, _ in pairs)
