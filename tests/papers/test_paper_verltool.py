"""VerlTool: trajectories continue independently, tool output has no gradient, and a recipe alone adds a tool.

Two tool turns with latencies (1, 1), (1, 3), (3, 1), (1, 1) take 4 units when every trajectory goes on as soon as its
own tool has answered, and 6 when all wait for the slowest of a turn; the tokens are the same. Loss weights are 0 and
gradients exactly 0 at every observed token. A tool in a module of one's own, named by its dotted path, is called.

Not shown: images and videos as observations, software engineering in containers, twice the speed on GPUs.
"""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from flows.planning.compile import compile_recipe
from learning.algorithm.loss import micro_loss, with_weights
from learning.data.chat import decode, encode_completion, encode_prompt, encode_reply
from learning.environments.clock import VirtualClock
from learning.environments.episodes import Episodes
from learning.environments.lookup_environment import build_environment
from learning.environments.making import wrap_in_environment
from learning.generation.engines.torch import Engine
from learning.generation.services.rescoring import compute_likelihoods
from learning.lookup import bind
from learning.models.packed import choose_forward
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.sandbox.run import available
from learning.toy_tasks.almanac import almanac
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from schemas.use import ToolUse
from tests.papers.loops import Update

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "verltool.yaml"
TOOLS = ["calculator", "search", "sql"]
LATENCIES = [[1, 1], [1, 3], [3, 1], [1, 1]]
CALLS = ["waits: 0", "waits: 1"]
"""What every trajectory says before its answer; the tool says how long it took."""
PASSED = threading.Event()
OWN = '''
import json

def waits(query: str, row: dict, *, unit: int = 1) -> str:
    """Takes as long as the problem says for its turn, in units of its own."""
    return str(unit * json.loads(row["metadata"])["latencies"][int(query)])
'''


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Makes the rl stage of a recipe that says what the shipped one says, and names a tool of one's own."""
    (tmp_path / "my_tools.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**tool):
        recipe = yaml.safe_load(RECIPE.read_text())
        recipe["vars"]["env"]["tools"].append({"use": "my_tools:waits", **tool})
        (tmp_path / "verltool.yaml").write_text(yaml.safe_dump(recipe))
        return load_recipe(tmp_path / "verltool.yaml", profile="tiny").stages["trained"]

    yield make
    sys.modules.pop("my_tools", None)


def blocks(query: str, row: dict, *, seconds: float) -> str:
    """In real time: the slow one's first call ends when the fast one has come to its second, or after a while."""
    if row["id"] == "fast" and query == "1":
        PASSED.set()
    return str(int(PASSED.wait(seconds))) if (row["id"], query) == ("slow", "0") else "-"


def rows_of(latencies):
    return [
        {"id": str(i), "prompt": [{"role": "user", "content": "abcdefgh"[i % 8]}], "answer": "1", "family": "f"}
        | {"metadata": json.dumps({"latencies": of})}
        for i, of in enumerate(latencies)
    ]


def dictated(tokenizer, turns, replies):
    """A processor under which every completion says these turns, whatever is answered in as many characters."""
    says = []
    for turn, reply in zip(turns, [*replies, None], strict=True):
        says += encode_completion(tokenizer, [{"role": "assistant", "content": turn}])
        says += [None] * (0 if reply is None else len(encode_reply(tokenizer, reply)))

    def process(logits_BV, place_B):
        at = torch.tensor([says[place] for place in place_B.tolist()])
        return torch.full_like(logits_BV, -torch.inf).scatter(1, at[:, None], logits_BV.gather(1, at[:, None]))

    return process


def played(stage, policy, rows, *, order=None, clock=None, turns=(*CALLS, "1"), replies=("1", "1"), n=1, step=0):
    """What the stage's environment and a real engine make of problems, on a clock of discrete events."""
    env = stage.env if order is None else stage.env.model_copy(update={"order": order})
    how = {"max_turns": env.max_turns, "workers": env.workers, "order": env.order}
    if clock is None:
        episodes = wrap_in_environment(Engine(policy), env, policy.tokenizer, {})
    else:
        episodes = Episodes(Engine(policy), build_environment(env, {}), tokenizer=policy.tokenizer, clock=clock, **how)
    sampling = Sampling(1.0, 112, processor=dictated(policy.tokenizer, turns, replies))
    samples = Sampler(episodes, policy, sampling, seed=3, step=step).sample([SampleRequest(row, n) for row in rows])
    episodes.close()
    return samples


def makespan(stage, policy, latencies, order):
    clock = VirtualClock(lambda outcome: float(outcome.observation or 0))
    samples = played(stage, policy, rows_of(latencies), order=order, clock=clock)
    assert [[turn.seconds for turn in t.turns] for t in samples] == [[*map(float, of), 0.0] for of in latencies]
    return clock.now, [(t.completion_ids, t.logprobs) for t in samples]


def test_trajectories_take_4_units_by_themselves_and_6_as_synchronised_batches(stage, tiny_policy):
    settings = stage()
    assert settings.env.order == "each"
    each, ours = makespan(settings, tiny_policy, LATENCIES, "each")
    together, theirs = makespan(settings, tiny_policy, LATENCIES, "together")
    assert (each, together) == (4.0, 6.0)
    assert ours == theirs


def test_the_longest_trajectory_against_the_sum_of_the_slowest_turns(stage, tiny_policy):
    """max over trajectories of Σ over turns, and Σ over turns of the max: by numpy, for latencies at random."""
    settings, rng = stage(), np.random.default_rng(1)
    for _ in range(3):
        seconds_PN = rng.integers(1, 10, size=(7, 2))
        latencies = seconds_PN.tolist()
        assert makespan(settings, tiny_policy, latencies, "each")[0] == seconds_PN.sum(1).max()
        assert makespan(settings, tiny_policy, latencies, "together")[0] == seconds_PN.max(0).sum()


@pytest.mark.parametrize(("order", "seconds", "passed"), [("each", 60.0, "1"), ("together", 0.2, "0")])
def test_a_slow_thread_delays_no_other(tiny_policy, order, seconds, passed):
    """By itself the fast one is at its second call while the first of the slow one lasts; in a batch it cannot be."""
    PASSED.clear()
    settings = load_recipe(RECIPE).stages["trained"]
    env = {"tools": [{"use": f"{__name__}:blocks", "seconds": seconds}], "steps_per_answer": None, "order": order}
    rows = [{**row, "id": name} for row, name in zip(rows_of([[], []]), ("fast", "slow"), strict=True)]
    stage = settings.model_copy(update={"env": settings.env.model_copy(update=env)})
    fast, slow = played(stage, tiny_policy, rows, turns=["blocks: 0", "blocks: 1", "1"], replies=("-", "-"))
    assert [turn.ok for sample in (fast, slow) for turn in sample.turns] == [True] * 6
    assert decode(tiny_policy.tokenizer, slow.completion_ids) == f"blocks: 0{passed}blocks: 1-1"


@pytest.fixture
def samples(stage, tiny_policy):
    """Two groups of three episodes with two tool turns each, rewards that differ, and the stage."""
    settings = stage()
    made = played(settings, tiny_policy, rows_of([[1, 2], [3, 4]]), n=3)
    for place, sample in enumerate(made):
        sample.reward = float(place % 3 == 0)
        sample.scores = {"answers.exact": sample.reward}
    return settings, undictated(tiny_policy, made)


def undictated(policy, samples):
    """As if the policy had sampled them by itself: where a ratio is clipped, nothing would have a gradient."""
    how_likely = compute_likelihoods(policy.model, [(t.prompt_ids, t.completion_ids) for t in samples], 1.0)
    for sample, logprobs in zip(samples, how_likely, strict=True):
        sample.logprobs = [lp if own else 0.0 for lp, own in zip(logprobs, sample.own, strict=True)]
    return samples


def places_of(samples):
    """Of every token of a batch with these paths, whether it was observed, and whether it is of a prompt."""
    observed, prompt, seen = [], [], set()
    for sample in samples:
        size = 0 if sample.group in seen else len(sample.prompt_ids)
        seen.add(sample.group)
        observed += [False] * size
        prompt += [True] * size + [False] * len(sample.completion_ids)
        for turn in sample.turns:
            observed += [False] * turn.sampled + [True] * turn.observed
    return torch.tensor(observed), torch.tensor(prompt)


def loss_of(stage, policy, samples, change=lambda batch: batch):
    """The recipe's loss, the parameters' gradients, the gradient at each token's last hidden state, and the batch."""
    made = Update(stage, policy)
    batch = change(made.prepared(samples)[1])
    batch = with_weights(made.algorithm, batch, 0, stage.max_completion_length)
    model, seen = made.trained.model, []
    choose_forward(model)  # the check has forward passes of its own

    def keep(module, given, out):
        out.last_hidden_state.retain_grad()
        seen.append(out.last_hidden_state)

    hook = model.base_model.register_forward_hook(keep)
    loss, _ = micro_loss(made.algorithm, model, batch, step=0, temperature=stage.temperature)
    loss.backward()
    hook.remove()
    return loss.detach(), [p.grad for p in model.parameters()], seen[0].grad[0], batch


def test_outputs_of_tools_have_no_weight_and_no_gradient(samples, tiny_policy):
    """A token's gradient is that at the hidden state which predicts it: not 0 where it was sampled, 0 elsewhere.

    The first tokens of siblings have one such state in common, where equal tokens cancel out: those are left aside.
    """
    stage, made = samples
    observed_M, prompt_M = places_of(made)
    assert int(observed_M.sum()) == sum(turn.observed for t in made for turn in t.turns) >= 6 * 2 * 4
    loss, grads, hidden_MC, batch = loss_of(stage, tiny_policy, made)
    assert batch.tokens["learn"].sum() == sum(turn.sampled for t in made for turn in t.turns)
    for name in ("w", *(f"w.{i}" for i in range(len(stage.loss_terms)))):
        assert bool((batch.tokens[name][batch.tokens["learn"]] != 0).all())
        assert float(batch.tokens[name][observed_M].abs().sum()) == 0.0
    source_M = batch.packed.source_M
    size_M = hidden_MC.abs().sum(1)[source_M]
    assert float(size_M[observed_M].abs().sum()) == 0.0
    assert float(size_M[batch.tokens["learn"] & ~prompt_M[source_M]].min()) > 0.0
    # Nothing that is said of an observed token reaches the loss, to the bit.
    noise_M = torch.where(observed_M, -3.0, 0.0).double()

    def noisy(batch):
        return replace(batch, tokens={**batch.tokens, "lp_behav": batch.tokens["lp_behav"] + noise_M})

    other = loss_of(stage, tiny_policy, made, noisy)
    assert torch.equal(loss, other[0])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(grads, other[1], strict=True))


def test_without_the_mask_there_would_be_one(samples, tiny_policy):
    """The same batch as one that takes every token after the prompt for the policy's: what the mask keeps out."""
    stage, made = samples
    observed_M, _ = places_of(made)
    blind = undictated(tiny_policy, [replace(sample, turns=[]) for sample in made])
    _, _, hidden_MC, batch = loss_of(stage, tiny_policy, blind)
    assert float(hidden_MC.abs().sum(1)[batch.packed.source_M][observed_M].min()) > 0.0


def test_a_tool_that_only_the_recipe_names_is_called(stage, tiny_policy):
    """By its dotted path, with its options; in the same engine and environment, without it, the name is unknown."""
    settings = stage(unit=2)
    (sample,) = played(settings, tiny_policy, rows_of([[3, 4]]))
    text = decode(tiny_policy.tokenizer, sample.completion_ids)
    assert text == "waits: 06waits: 181"
    assert [turn.ok for turn in sample.turns] == [True, True, True]
    assert sample.text == "1"
    shipped = load_recipe(RECIPE, profile="tiny").stages["trained"]
    unknown = "no tool waits; there are calculator, sea..."
    (sample,) = played(shipped, tiny_policy, rows_of([[3, 4]]), replies=(unknown, unknown))
    assert [turn.ok for turn in sample.turns] == [False, False, True]
    assert unknown in decode(tiny_policy.tokenizer, sample.completion_ids)


def test_a_step_key_contains_the_code_of_a_user_tool(stage, tmp_path):
    stage()

    def key():
        plan = compile_recipe(load_recipe(tmp_path / "verltool.yaml", profile="tiny"), Layout(tmp_path / "state"))
        return plan.step("trained").key

    before = key()
    assert key() == before
    (tmp_path / "my_tools.py").write_text(OWN.replace("unit *", "2 * unit *"))
    assert key() != before


def test_a_lesson_is_the_beginning_of_an_episode_token_by_token(wide_policy):
    """What fine-tuning shows a model is what a rollout shows it: turn k has the ids of the episode up to it."""
    shipped = load_recipe(RECIPE, profile="tiny").stages
    few = {"of": {"use": "almanac", "split": "train", "size": 3}}
    lessons = bind(shipped["lessons"].problems[0].model_copy(update=few))()
    teacher = bind(shipped["lessons"].teacher.model_copy(update={"error_rate": 0.0}))
    tokenizer, rng = wide_policy.tokenizer, np.random.default_rng(0)
    problems = {}
    for row in lessons:
        problems.setdefault(row["id"].partition(".")[0], []).append(row)
    for of in problems.values():
        turns = [teacher(row, rng) for row in of]
        replies = [row["prompt"][-1]["content"] for row in of[1:]]
        (sample,) = played(shipped["trained"], wide_policy, [of[0]], turns=turns, replies=replies)
        assert (sample.text, sample.finish) == (of[0]["answer"], "stop")
        ids = [*sample.prompt_ids, *sample.completion_ids]
        for row, turn in zip(of, turns, strict=True):
            lesson = encode_prompt(tokenizer, row["prompt"])
            lesson += encode_completion(tokenizer, [{"role": "assistant", "content": turn}])
            assert ids[: len(lesson)] == lesson
        assert ids == lesson


@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_the_sum_of_digits_is_found_by_a_program_in_the_sandbox(wide_policy):
    """The full profile's environment, whose tools are the four of the paper's text domains."""
    env = load_recipe(RECIPE, profile="full").stages["trained"].env
    assert [bind(ToolUse.model_validate(tool)).name for tool in env.options["tools"]] == [*TOOLS, "python"]
    stage = load_recipe(RECIPE, profile="tiny").stages["trained"].model_copy(update={"env": env})
    (row,) = almanac(size=1, split="test", kinds=["digits"])
    turns = json.loads(row["metadata"])["script"]
    (sample,) = played(stage, wide_policy, [row], turns=turns, replies=(row["answer"],))
    assert (sample.text, [turn.ok for turn in sample.turns]) == (row["answer"], [True, True])
    assert row["answer"] in decode(wide_policy.tokenizer, sample.completion_ids).partition(turns[0])[2]
