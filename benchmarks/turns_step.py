"""Time of a GRPO step over episodes of several turns, compared with TRL's tool loop: same weights, turns, tools, loss.

    python benchmarks/turns_step.py [--quick] [--rounds 3] [--steps 4] [--threads 2] [--turns 8] [--answers 20 200]

Both sides sample 16 x 4 episodes of 8 turns. Every turn has 24 tokens, the last of which is the end token; every
answer of the tool has as many characters as `--answers` says, a token each. The model is that of grpo_step.py with
random weights, so a logits processor decides where turns end, and TRL's parser is told that every turn but the last
calls the tool. Each side runs in its own process, the two taking turns. One JSON line per length of answers gives wall
and CPU seconds of a whole step and of its rollout, and their ratios TRL / ours, with the tokens that each side sampled
and observed in a step, which must be equal. `--ours` leaves TRL out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from grpo_sides import ALGORITHM, ALPHABET, LR, MAX_LENGTH, TRL_SETTINGS, VOCABULARY, make_clock, texts, time_stage
from timing import between, now, spread

GROUPS, GENERATIONS, PROMPT, TURN = 16, 4, 64, 24
BETWEEN = 3
"""Tokens between two turns besides the answer: brackets around it, and the model's mark."""
length = {"answer": 20}
"""Characters of an answer, which this process sets."""
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}>{{ m['content'] }}"
    "{% for c in m.get('tool_calls') or [] %}{{ c['function']['name'] }}{{ c['function']['arguments'] | tojson }}"
    "{% endfor %}{{ eos_token }}{% else %}[{{ m['content'] }}]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def answer(text: str) -> str:
    """The tool: a letter that depends on what was asked, repeated."""
    return chr(ord("a") + sum(text.encode()) % 26) * length["answer"]


def look_up(query: str) -> str:
    """Look a word up.

    Args:
        query: the word
    """
    return answer(query)


class World:
    """Our side's environment: the tool answers every turn."""

    def begin(self, row: dict[str, Any], seed: int) -> "World":
        """An episode."""
        return self

    def step(self, action: str) -> Any:
        """Answer a turn."""
        from learning.environments.protocol import Outcome

        return Outcome(answer(action[:1]), seconds=0.0)


def end_turns(logits_BV: Any, place_B: Any) -> Any:
    """Let every turn of our side end at its last token and no earlier."""
    last_B = place_B % (TURN + length["answer"] + BETWEEN) == TURN - 1
    only = logits_BV.new_full(logits_BV.shape, -float("inf"))
    only[:, VOCABULARY] = 0.0
    never = logits_BV.clone()
    never[:, VOCABULARY] = -float("inf")
    return only.where(last_B[:, None], never)


COUNTED: dict[str, int] = {}
"""Tokens of the last step of this process."""
ROLLOUTS: list[tuple[float, float]] = []
"""Wall and CPU seconds of each rollout of this process."""


def timed(sample: Any) -> Any:
    """Return a function that samples and notes how long that took."""

    def call(*given: Any, **named: Any) -> Any:
        began = now()
        result = sample(*given, **named)
        ROLLOUTS.extend(between([began, now()]))
        return result

    return call


def share_of_vowels(texts: list[str]) -> list[float]:
    """Return the share of vowels in each text."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in texts]


def vowels(samples: list[Any]) -> list[float]:
    """Reward of our side: share of vowels in the last turn. Counts the tokens of the step."""
    turns = [turn for sample in samples for turn in sample.turns]
    COUNTED.update(sampled=sum(turn.sampled for turn in turns), observed=sum(turn.observed for turn in turns))
    return share_of_vowels([sample.text for sample in samples])


def make_model(folder: Path) -> None:
    """The model of grpo_step.py with a logit for the end token, and a chat template that renders tools."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

    plain = Tokenizer(models.WordLevel({c: i for i, c in enumerate(ALPHABET)} | {"<eos>": VOCABULARY}, unk_token=" "))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    plain.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>", pad_token=ALPHABET[0])
    tokenizer.chat_template = TEMPLATE
    tokenizer.model_max_length = MAX_LENGTH
    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6}
    special = {"eos_token_id": VOCABULARY, "pad_token_id": 0, "bos_token_id": None}
    config = Qwen2Config(
        vocab_size=VOCABULARY + 1,
        num_key_value_heads=6,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        **sizes,
        **special,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def count_room(turns: int) -> int:
    """Tokens of a completion of that many turns."""
    return turns * TURN + (turns - 1) * (length["answer"] + BETWEEN)


def run_ours(folder: Path, turns: int, steps: int, threads: int) -> list[tuple[float, float]]:
    """Wall and CPU seconds of each step of the rl task, everything included."""
    from learning.environments.episodes import Episodes
    from schemas.stages.rl import Rl

    Episodes.generate = timed(Episodes.generate)
    settings = {
        "kind": "rl",
        "model": "model",
        "prompts": "prompts",
        "rewards": ["turns_step:vowels"],
        "env": {"use": "turns_step:World", "max_turns": turns},
        "logits_processors": ["turns_step:end_turns"],
        "generation_batch_size": GROUPS * GENERATIONS,
        "num_generations": GENERATIONS,
        "max_completion_length": count_room(turns),
        "max_steps": steps,
        "learning_rate": LR,
    }
    return time_stage(Rl.model_validate({**settings, **ALGORITHM}), folder, texts(PROMPT, GROUPS * steps), threads)


def run_trl(folder: Path, turns: int, steps: int, threads: int) -> list[tuple[float, float]]:
    """Wall and CPU seconds of each step of GRPOTrainer with a tool."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    torch.set_num_threads(threads)
    ends: list[tuple[float, float]] = []

    class EndTurns(LogitsProcessor):
        def __init__(self, begun: int) -> None:
            self.begun = begun

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            ends_now = input_ids.shape[1] - self.begun == TURN - 1
            changed = torch.full_like(scores, -float("inf")) if ends_now else scores.clone()
            changed[:, VOCABULARY] = 0.0 if ends_now else -float("inf")
            return changed

    def parse(tokenizer: Any, ids: list[int], **rest: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "look_up", "arguments": {"query": text[:1]}}}
        return {"role": "assistant", "content": text, "tool_calls": [call]}

    grpo_trainer.parse_response = parse
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=GROUPS * GENERATIONS,
            max_completion_length=count_room(turns),
            max_tool_calling_iterations=turns - 1,
            max_steps=steps,
            learning_rate=LR,
            **{**TRL_SETTINGS, "num_generations": GENERATIONS},
        )
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.response_schema = {}
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder),
            processing_class=tokenizer,
            reward_funcs=lambda completions, **rest: share_of_vowels([c[-1]["content"] for c in completions]),
            args=config,
            train_dataset=Dataset.from_dict(
                {"prompt": [[{"role": "user", "content": text}] for text in texts(PROMPT, GROUPS * steps)]}
            ),
            tools=[look_up],
            callbacks=[make_clock(ends)],
        )
        generate, loss = trainer.model.generate, trainer._compute_loss

        def generate_turn(input_ids: Any, **rest: Any) -> Any:
            return generate(input_ids, logits_processor=[EndTurns(input_ids.shape[1])], **rest)

        def count_and_compute(model: Any, inputs: dict[str, Any]) -> Any:
            trained = int((inputs["completion_mask"] * inputs["tool_mask"]).sum())
            COUNTED.update(sampled=trained, observed=int(inputs["completion_mask"].sum()) - trained)
            return loss(model, inputs)

        trainer.model.generate, trainer._compute_loss = generate_turn, count_and_compute
        trainer._generate = timed(trainer._generate)
        trainer.train()
    return between(ends)


def spawn(side: str, folder: Path, answer: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one side in a process of its own."""
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder), "--turns", str(options.turns)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads), "--answers", str(answer)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(folder: Path, answer: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the times of both sides, taking turns; a ratio is that of the medians of one round."""
    sides = ("ours",) if options.ours else ("ours", "trl")
    parts = ("seconds", "rollouts")
    rounds: dict[str, dict[str, list[tuple[float, float]]]] = {side: {part: [] for part in parts} for side in sides}
    counts: dict[str, dict[str, int]] = {}
    for _ in range(options.rounds):
        for side in sides:
            measured = spawn(side, folder, answer, options)
            for part in parts:
                wall, cpu = zip(*measured[part][1:], strict=True)
                rounds[side][part].append((statistics.median(wall), statistics.median(cpu)))
            counts[side] = measured["tokens"]
    if len({json.dumps(count, sort_keys=True) for count in counts.values()}) > 1:
        raise SystemExit(f"the two sides do not do the same work: {counts}")
    results: dict[str, Any] = {"benchmark": "turns_step", "turns": options.turns, "answer": answer}
    results["tokens"] = counts["ours"]
    for part, name in zip(parts, ("step", "rollout"), strict=True):
        for place, clock in enumerate(("seconds", "cpu_seconds")):
            taken = {side: [medians[place] for medians in rounds[side][part]] for side in sides}
            results |= {f"{side}_{name}_{clock}": spread(values) for side, values in taken.items()}
            if not options.ours:
                ratios = [b / a for a, b in zip(taken["ours"], taken["trl"], strict=True)]
                results[f"{name}_speedup_{clock}"] = spread(ratios)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of two steps: a smoke test, not a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side")
    parser.add_argument("--steps", type=int, default=4, help="steps per process; the first is not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--answers", type=int, nargs="+", default=[20, 200], help="characters of the tool's answers")
    parser.add_argument("--ours", action="store_true", help="leave TRL out")
    parser.add_argument("--side", choices=["ours", "trl"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 2
    if options.side:
        import turns_step  # the module whose functions the stage names, not this script

        run = {"ours": turns_step.run_ours, "trl": turns_step.run_trl}[options.side]
        turns_step.length["answer"] = options.answers[0]
        seconds = run(options.folder, options.turns, options.steps, options.threads)
        print(json.dumps({"seconds": seconds, "rollouts": turns_step.ROLLOUTS, "tokens": turns_step.COUNTED}))
        return
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch))
        for answer in options.answers:
            print(json.dumps(compare(Path(scratch), answer, options)), flush=True)


if __name__ == "__main__":
    main()
