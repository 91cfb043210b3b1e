"""The rollout `tree_search`: where further episodes branch off, and what they find against independent ones."""

import math
from dataclasses import replace

import numpy as np
import pytest

from learning.collection.rollouts.tree_search import choose_state, compute_return
from learning.data.chat import decode, encode_completion
from learning.data.rows import Row
from learning.environments.making import wrap_in_environment
from learning.environments.protocol import Outcome
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Sampling, Turn
from learning.samples.sample import SampleRequest
from learning.sampling.pending_samples import Pending
from learning.sampling.sampler import Sampler
from schemas.errors import StepError
from schemas.use import EnvUse, RolloutUse

ROW = {"id": "r", "prompt": [{"role": "user", "content": "spell"}], "answer": "abcabc"}


def played(*turns):
    """Return an ended episode of turns (token, reward), each of one token before an observed 0, the last without."""
    made = Pending(SampleRequest(ROW), "g", [1], 0, 0, finish="stop")
    for number, (token, reward) in enumerate(turns):
        last = number + 1 == len(turns)
        made.ids += [token] if last else [token, 0]
        made.turns.append(Turn(1, 0 if last else 1, reward))
    return made


def test_the_walk_widens_by_the_root_of_the_visits():
    """One episode: 1 ≤ √1 stops at the start. Two that begin differently: 2 > √2 goes on, to the better turn."""
    good, bad = played((5, 0.0), (6, 1.0)), played((7, 0.0), (8, 0.0))
    assert choose_state([good], 1.0, 1.0) == (good, 0)
    assert choose_state([good, bad], 1.0, 1.0) == (good, 1)
    assert choose_state([bad, good], 1.0, 1.0) == (good, 1)
    assert choose_state([good, bad], 1.0, 1.5) == (good, 0)  # 2 ≤ 1.5·√2
    assert compute_return(good) == 1.0


def test_the_walk_weighs_returns_against_visits():
    """After turn 5: returns 1, 0, 0 (mean 1/3, 3 visits); after turn 7: 0.2 (1 visit); n = 4, widening 0.5."""
    tree = [
        played((5, 0.0), (6, 1.0)),
        played((5, 0.0), (8, 0.0)),
        played((5, 0.0), (9, 0.0)),
        played((7, 0.1), (8, 0.1)),
    ]
    border = (1 / 3 - 0.2) / (math.sqrt(math.log(4)) * (1 - math.sqrt(1 / 3)))
    assert choose_state(tree, border - 0.01, 0.5) == (tree[0], 1)
    assert choose_state(tree, border + 0.01, 0.5) == (tree[3], 1)


def test_an_episode_that_ends_with_a_turn_is_no_state_to_go_on_from():
    """At the start are three different turns, more than √3; the best of them ended its episode."""
    tree = [played((5, 9.0)), played((6, 0.0), (6, 0.0)), played((7, 0.5), (6, 0.0))]
    assert choose_state(tree, 0.0, 1.0) == (tree[2], 1)
    assert choose_state([played((5, 9.0)), played((6, 1.0))], 0.0, 0.1)[1] == 0


class Environment:
    """Spell the row's answer letter by letter: each right one, in a row from the start, earns its share."""

    def begin(self, row: Row, seed: int) -> "Spelling":
        """Return a word."""
        return Spelling(row["answer"])


class Spelling:
    """The letters so far."""

    def __init__(self, goal: str) -> None:
        self.goal, self.word = goal, ""

    def step(self, action: str) -> Outcome:
        """Add a letter."""
        self.word += action[:1] or "?"
        right = self.goal.startswith(self.word)
        done = len(self.word) == len(self.goal)
        return Outcome("next", done=done, reward=right / len(self.goal))


class Letters:
    """An engine that writes a random letter per turn, by the stream of its request and the number of the turn."""

    def __init__(self, tokenizer):
        self.tokenizer, self.written = tokenizer, 0

    def generate(self, requests, sampling):
        return [[self.write(r, r.first + i) for i in range(r.n)] for r in requests]

    def write(self, request, number):
        self.written += 1
        rng = np.random.default_rng([request.seed, number, decode(self.tokenizer, list(request.begun)).count("next")])
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": "abc"[int(rng.integers(3))]}])
        return Generation(ids, [-1.0 - number] * len(ids), "stop")

    def sync(self, version):
        pass


def roll(policy, use, n, seed=0, rows=(ROW,)):
    """Return the samples of groups, the turns written, and the sampler."""
    engine = Letters(policy.tokenizer)
    env = EnvUse.model_validate({"use": f"{__name__}:Environment", "max_turns": 8})
    episodes = wrap_in_environment(engine, env, policy.tokenizer, {}, 4000)
    sampler = Sampler(episodes, Policy(policy.model, policy.tokenizer, 4000), Sampling(1.0, 400), seed, 0)
    samples = bind(RolloutUse.model_validate(use)).ask(
        0, {"requests": [SampleRequest(row, n) for row in rows], "sampler": sampler}
    )
    return samples, engine.written, sampler


def earn(sample):
    return sum(turn.reward for turn in sample.turns)


SEARCH = {"use": "tree_search", "initial": 1, "exploration": 0.3}


def test_a_group_finds_more_than_independent_episodes_with_fewer_turns(tiny_policy):
    """Six letters of three, in a row from the start; the settings were chosen with seeds below 200."""
    found, alone = [], []
    for seed in range(200, 208):
        tree, turns, _ = roll(tiny_policy, SEARCH, 32, seed)
        whole, all_turns, _ = roll(tiny_policy, {"use": "synchronous"}, 32, seed)
        assert len(tree) == len(whole) == 32
        assert turns < all_turns == 32 * 6
        found.append(max(map(earn, tree)))
        alone.append(max(map(earn, whole)))
    assert np.mean(found) >= np.mean(alone) + 0.1


def test_branches_keep_tokens_and_likelihoods_and_groups_are_independent(tiny_policy):
    rows = [ROW, ROW | {"id": "s", "answer": "ccc"}]
    samples, written, sampler = roll(tiny_policy, SEARCH, 8, rows=rows)
    assert [sample.group for sample in samples] == [0] * 8 + [1] * 8
    taken_over = 0
    for group in (samples[:8], samples[8:]):
        for place, sample in enumerate(group):
            own = sample.origins[-1]
            shared = sum(origin != own for origin in sample.origins)
            taken_over += sum(t.sampled for t in sample.turns) - sum(token != 0 for token in sample.logprobs[shared:])
            if shared:
                source = next(s for s in group[:place] if s.completion_ids[:shared] == sample.completion_ids[:shared])
                assert source.logprobs[:shared] == sample.logprobs[:shared]
                assert source.origins[:shared] == sample.origins[:shared]
    assert taken_over > 0
    assert sampler.sampled == sum(t.sampled for s in samples for t in s.turns) - taken_over
    alone, _, _ = roll(tiny_policy, SEARCH, 8)
    assert [s.completion_ids for s in alone] == [s.completion_ids for s in samples[:8]]
    assert written == sum(len(s.turns) for s in samples) - taken_over // samples[0].turns[0].sampled


def test_a_group_that_is_too_small_is_refused(tiny_policy):
    with pytest.raises(StepError, match="lower it or raise num_generations"):
        roll(tiny_policy, SEARCH | {"initial": 3}, 2)
    assert len(roll(tiny_policy, SEARCH | {"initial": 2}, 2)[0]) == 2


def test_turns_whose_answers_differ_lead_to_different_states():
    one = played((5, 0.0), (6, 0.0))
    other = replace(played((5, 0.0), (6, 1.0)), ids=[5, 1, 6])
    assert choose_state([one, other], 0.0, 1.0) == (other, 1)
