"""A run that is killed at any moment continues, and gives what the undisturbed run gives."""

import contextlib
import os
import random
import signal
import subprocess
import time

import pytest

WORK = '''
import time

def sums(context, *, rounds: int = 40, seed_value: int = 1):
    """Sums with a checkpoint per round."""
    state = context.checkpoints / "state.txt"
    i, total = map(int, state.read_text().split()) if state.exists() else (0, seed_value)
    for i in range(i, rounds):
        total = total * 31 % 1000003 + i
        new = context.checkpoints / "state.tmp"
        new.write_text(f"{i + 1} {total}")
        new.replace(state)
        context.progress(i + 1, rounds)
        time.sleep(0.01)
    (context.output("result") / "n.txt").write_text(str(total))

def join(context):
    texts = [(p / "n.txt").read_text() for n, p in sorted(context.inputs.items()) if n.startswith("inputs.")]
    (context.output("result") / "n.txt").write_text(" ".join(texts))
'''
PLAIN = """
name: plain
stages:
  a: {kind: python, function: {use: "killed_work:sums", seed_value: 3}}
  b: {kind: python, function: {use: "killed_work:sums", rounds: 50}, inputs: {x: a}}
  c: {kind: python, function: {use: "killed_work:sums", rounds: 30, seed_value: 5}}
  d: {kind: python, function: "killed_work:join", inputs: {x: b, y: c}}
"""
MODEL = """
name: whole
seed: 3
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 16, tie_word_embeddings: true}
    tokenizer: {use: characters}
    max_length: 64
  data:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 64, style: short}]
    teacher: {use: answer}
  prompts:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 32, seed: 2, style: short}]
  tuned: {kind: sft, model: base, data: data, max_steps: 12, save_steps: 2, max_length: 64}
  better:
    kind: rl
    algorithm: grpo
    model: tuned
    prompts: prompts
    rewards: [answers.exact]
    max_steps: 10
    save_steps: 2
    generation_batch_size: 16
    num_generations: 4
    max_completion_length: 8
"""


def killed_again_and_again(checkout, processes, recipe, executor, kills, seed):
    """Kills at seeded moments, each followed by `resume`, until that many fell into a run; all ends are equal."""
    moments = random.Random(seed)
    calm = checkout("calm", recipe, {"killed_work": WORK})
    begun = time.monotonic()
    calm.finish(calm.run(executor))
    duration, wanted = time.monotonic() - begun, calm.digests()
    struck = 0
    while struck < kills:
        stormy = checkout(f"stormy-{struck}", recipe, {"killed_work": WORK})
        process = stormy.run(executor)
        for _ in range(min(3, kills - struck)):
            try:
                process.wait(duration * moments.uniform(0.02, 0.98))
                break
            except subprocess.TimeoutExpired:
                processes.kill(process)
                struck += 1
            process = stormy.go_on(executor)
        stormy.finish(process)
        assert stormy.digests() == wanted
        assert stormy.leftovers() == []
        stormy.is_quiet()


def test_killed_three_times(checkout, processes):
    killed_again_and_again(checkout, processes, PLAIN, "inprocess", kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_twenty_moments_of_training(checkout, processes):
    killed_again_and_again(checkout, processes, MODEL, "inprocess", kills=20, seed=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_twenty_moments_on_ray_and_prefect(checkout, processes):
    killed_again_and_again(checkout, processes, MODEL, "ray", kills=20, seed=3)


SLOW = pytest.mark.slow


def rounds_done(checkout):
    """Of the step that has got farthest among those that are not finished."""
    rounds = [0]
    for state in checkout.layout.state.glob("work/*/checkpoints/state.txt"):
        with contextlib.suppress(FileNotFoundError):
            rounds.append(int(state.read_text().split()[0]))
    return max(rounds)


@pytest.mark.parametrize(
    ("executor", "number"),
    [
        ("inprocess", signal.SIGINT),
        pytest.param("inprocess", signal.SIGTERM, marks=SLOW),
        pytest.param("inprocess", signal.SIGHUP, marks=SLOW),
        pytest.param("ray", signal.SIGINT, marks=SLOW),
        pytest.param("ray", signal.SIGTERM, marks=SLOW),
    ],
)
def test_interrupted_then_resumed(checkout, processes, executor, number):
    long = PLAIN.replace("rounds: 50", "rounds: 250")
    calm = checkout("calm", long, {"killed_work": WORK})
    calm.finish(calm.run("inprocess"))
    other = checkout("other", long, {"killed_work": WORK})
    process = other.run(executor)
    processes.wait_for(lambda: rounds_done(other) > 60)  # only b has that many
    os.killpg(process.pid, number)
    assert process.wait(60) == 130, other.output.read_text()
    other.is_quiet()
    assert "continue with: posttrain resume" in other.output.read_text()
    assert rounds_done(other) > 60
    other.finish(other.go_on(executor))
    assert other.digests() == calm.digests()
    assert other.leftovers() == []
