"""ARPO: episodes branch after answers of tools where the entropy has risen, from one budget with whole episodes.

An engine with known entropies writes the turns; rollout, environment, rewards and advantages are those of the recipe.
Not shown: that branches save tool calls at equal accuracy, which is measured.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.batch.columns import Column, ColumnView
from learning.data.chat import decode, encode_completion
from learning.environments.episodes import Episodes
from learning.environments.making import wrap_in_environment
from learning.environments.protocol import Outcome
from learning.generation.engines.torch import Engine
from learning.lookup import bind
from learning.models.packed import choose_forward, packed_logprobs
from learning.models.policy import Policy
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler, stream
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "arpo.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, HARD, GRPO = STAGES["trained"], STAGES["hard"], STAGES["grpo"]
BUDGET, INITIAL = TRAINED.num_generations, TRAINED.rollout.options["initial"]


class Unsure:
    """An engine that calls the calculator twice and answers; the entropies of a turn are given.

    `entropy(number, turn)` is that of the turn's first eight tokens; the later ones have 9 nats, which must not count.
    """

    def __init__(self, tokenizer, entropy):
        self.tokenizer, self.entropy, self.written, self.begun = tokenizer, entropy, [], {}

    def generate(self, requests, sampling):
        return [[self.write(r, r.first + i, sampling) for i in range(r.n)] for r in requests]

    def write(self, request, number, sampling):
        turn = decode(self.tokenizer, list(request.begun)).count("calculator:")
        self.written.append((number, turn))
        self.begun.setdefault(number, tuple(request.begun))
        text = f"calculator: {number}{turn}+100" if turn < 2 else "7"
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": text}])
        known = [self.entropy(number, turn)] * 8 + [9.0] * len(ids)
        return Generation(ids, [-1.0 - number] * len(ids), "stop", known[: len(ids)] if sampling.entropy else [])

    def sync(self, version):
        pass


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


@pytest.fixture(scope="module")
def row():
    return bind(STAGES["questions"].problems[0])()[0]


def roll(policy, row, entropy, use=TRAINED.rollout, n=BUDGET):
    """The samples of a group under a rollout of the recipe, and the engine."""
    engine = Unsure(policy.tokenizer, entropy)
    episodes = wrap_in_environment(engine, TRAINED.env, policy.tokenizer, {}, policy.max_length)
    sampler = Sampler(episodes, policy, Sampling(1.0, 400), 0, 0)
    samples = bind(use).ask(0, {"requests": [SampleRequest(row, n)], "sampler": sampler})
    return samples, engine


def find_shared(samples):
    """For every sample the number of tokens that it took over."""
    own = [sample.origins[-1] for sample in samples]
    return [sum(origin != mine for origin in sample.origins) for sample, mine in zip(samples, own, strict=True)]


def cut_before(sample, turn):
    return sum(of.sampled + of.observed for of in sample.turns[:turn])


@pytest.mark.parametrize(("rise", "branches"), [(1.0, True), (0.0, False), (0.74, False), (0.76, True)])
def test_an_episode_branches_where_the_entropy_has_risen_enough(policy, row, rise, branches):
    """α = 0.2 and β = 0.4: a rise of 1 gives 0.6 > 0.5, none gives 0.2; 0.75 nats are the border."""
    samples, engine = roll(policy, row, lambda number, turn: 0.3 + rise * (turn == 1))
    assert len(samples) == BUDGET == 8
    whole = [number for number, turn in engine.written if turn == 0]
    assert whole == list(range(INITIAL if branches else BUDGET))
    shared = find_shared(samples)
    assert shared[:INITIAL] == [0] * INITIAL
    assert shared[INITIAL:] == [cut_before(samples[i], 1) if branches else 0 for i in range(INITIAL)]


def test_branches_come_out_of_one_budget_early_turns_first(policy, row):
    """Only the second episode is unsure, before both of its later turns; its branch is unsure once more."""
    samples, engine = roll(policy, row, lambda number, turn: 2.0 * (turn > 0 and number in (1, 4)))
    assert len(samples) == BUDGET
    # 4 branches off 1 before turn 1; then 5 off 1 and 6 off 4 before turn 2; 7 is a whole episode.
    assert find_shared(samples)[INITIAL:] == [
        cut_before(samples[1], 1),
        cut_before(samples[1], 2),
        cut_before(samples[4], 2),
        0,
    ]
    origins = [dict.fromkeys(sample.origins) for sample in samples]
    names = [stream(stream(0, 0, 0), number) for number in range(BUDGET)]
    assert [list(of) for of in origins] == [
        [names[0]],
        [names[1]],
        [names[2]],
        [names[3]],
        [names[1], names[4]],
        [names[1], names[5]],
        [names[1], names[4], names[6]],
        [names[7]],
    ]
    # Fewer tokens are sampled, and fewer tools called, than by whole episodes.
    assert sorted(engine.written) == sorted(
        [(n, t) for n in (0, 1, 2, 3, 7) for t in range(3)] + [(4, 1), (4, 2), (5, 2), (6, 2)]
    )


def test_no_group_is_larger_than_its_budget(policy, row):
    for n in (INITIAL, INITIAL + 1):
        samples, _ = roll(policy, row, lambda number, turn: 3.0 * (turn > 0), n=n)
        assert len(samples) == n
    with pytest.raises(StepError, match="lower it or raise num_generations"):
        roll(policy, row, lambda number, turn: 0.0, n=INITIAL - 1)


def test_a_branch_keeps_what_was_sampled_before_it(policy, row):
    samples, engine = roll(policy, row, lambda number, turn: 1.0 * (turn > 0))
    for number in range(INITIAL, BUDGET):
        branch, source, cut = samples[number], samples[number - INITIAL], cut_before(samples[number - INITIAL], 1)
        assert branch.completion_ids[:cut] == source.completion_ids[:cut] == list(engine.begun[number])
        assert branch.logprobs[:cut] == source.logprobs[:cut]
        assert branch.turns[0] == source.turns[0]
        assert branch.completion_ids[cut:] != source.completion_ids[cut:]
        assert set(branch.logprobs[cut:]) == {-1.0 - number, 0.0}
        assert (branch.group, branch.finish, len(branch.turns)) == (source.group, "stop", 3)
        assert sum(branch.own) == sum(source.own) + sum(branch.own[cut:]) - sum(source.own[cut:])


class Counting:
    """An environment whose answers depend on its seed; notes the seeds of its episodes."""

    def __init__(self):
        self.seeds = []

    def begin(self, row, seed):
        self.seeds.append(seed)
        return Answering(seed)


class Answering:
    def __init__(self, seed):
        self.seed = seed

    def step(self, action):
        return Outcome(str(self.seed % 97))


def test_the_environment_of_a_branch_is_that_of_its_source(tiny_policy, row):
    """With a real engine: the same seed, the same answers, and log-probabilities of the context that was there."""
    tiny_policy.max_length = 4000
    world = Counting()
    episodes = Episodes(Engine(tiny_policy), world, tokenizer=tiny_policy.tokenizer, max_turns=3)
    eos = tiny_policy.tokenizer.eos_token_id

    def process(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        logits_BV[:, eos] += 4.0
        return logits_BV

    problem = row | {"prompt": [{"role": "user", "content": "ab"}]}
    sampler = Sampler(episodes, tiny_policy, Sampling(1.0, 90, processor=process), 5, 0)
    use = TRAINED.rollout.model_copy(update={"base": 9.0})
    samples = bind(use).ask(0, {"requests": [SampleRequest(problem, BUDGET)], "sampler": sampler})
    shared = find_shared(samples)
    assert sum(cut > 0 for cut in shared) == BUDGET - INITIAL
    assert len(set(world.seeds)) == INITIAL < len(world.seeds)
    for sample, cut in zip(samples, shared, strict=True):
        if cut:
            source = next(s for s in samples if s.origins[-1] == sample.origins[0])
            assert sample.completion_ids[:cut] == source.completion_ids[:cut]
    choose_forward(tiny_policy.model)
    batch = forest(samples)
    assert batch.sampled("entropy_behav").min() > 0
    with torch.no_grad():
        logits = tiny_policy.model(torch.tensor([[*samples[-1].prompt_ids, *samples[-1].completion_ids]])).logits[0]
    size = len(samples[-1].prompt_ids)
    logits[:, eos] += 4.0
    lp = logits.log_softmax(-1)[size - 1 : -1].gather(1, torch.tensor(samples[-1].completion_ids)[:, None])[:, 0]
    own = torch.tensor(samples[-1].own)
    assert lp[own].tolist() == pytest.approx(torch.tensor(samples[-1].logprobs)[own].tolist(), abs=1e-4)


def pair(prefix=(1, 2, 3), tails=((4, 5), (6, 7)), rewards=(1.0, 0.0)):
    """Two branches of one episode that share a turn of three tokens."""
    samples = []
    for number, (tail, reward) in enumerate(zip(tails, rewards, strict=True)):
        ids = [*prefix, *tail]
        made = Sample({"id": "a"}, 0, "policy", [8, 9], ids, [-1.0] * len(ids), "stop", "")
        made.origins = [11] * len(prefix) + [11 + number] * len(tail)
        made.versions, made.scores, made.reward = [0] * len(ids), {"r": reward}, reward
        samples.append(made)
    return samples


def bound(stage):
    name = next(name for name, one in STAGES.items() if one is stage)
    return bind_algorithm(stage, {port.path: Path("p") for port in LOADED.ports(name)})


def test_a_shared_token_has_the_mean_of_its_branches_only_if_hard():
    """Advantages 1 and −0.5: 0.25 in hard attribution, while the copies of soft attribution keep their branches'."""
    batch = forest(pair())
    values = torch.tensor([1.0, -0.5], dtype=torch.float64)
    column = Column(values, values, torch.arange(2), "path")
    (operation,) = [part for part in bound(HARD).advantage if part.name == "shared_tokens"]
    hard_T = operation.ask(0, ColumnView(batch), column, batch).values_X
    assert hard_T.tolist() == [0.25, 0.25, 0.25, 1.0, 1.0, 0.25, 0.25, 0.25, -0.5, -0.5]
    assert "shared_tokens" not in [part.name for part in bound(TRAINED).advantage]
    soft_T = with_advantages(bound(TRAINED), batch, 0).sampled("advantage")
    a = 0.5 / (0.5**0.5 + 1e-4)
    assert soft_T.tolist() == pytest.approx([a] * 5 + [-a] * 5)
    hard_T = with_advantages(bound(HARD), batch, 0).sampled("advantage")
    assert hard_T.tolist() == pytest.approx([0.0] * 3 + [a] * 2 + [0.0] * 3 + [-a] * 2)
    # Tokens that only look alike are not shared.
    alike = pair()
    alike[1].origins = [12] * 5
    assert with_advantages(bound(HARD), forest(alike), 0).sampled("advantage").tolist() == pytest.approx(
        soft_T.tolist()
    )


def test_branches_of_branches_share_what_each_has_in_common():
    samples = [*pair(), pair(tails=((4, 9), (6, 7)))[0]]
    samples[2].origins, samples[2].reward = [11, 11, 11, 11, 13], 0.0
    batch = forest(samples)
    values = torch.tensor([3.0, 0.0, 1.5], dtype=torch.float64)
    (operation,) = [part for part in bound(HARD).advantage if part.name == "shared_tokens"]
    column = operation.ask(0, ColumnView(batch), Column(values, values, torch.arange(3), "path"), batch)
    assert column.values_X.tolist() == [1.5] * 3 + [2.25, 3.0] + [1.5] * 3 + [0.0, 0.0] + [1.5] * 3 + [2.25, 1.5]


def test_at_the_sampling_policy_soft_and_hard_have_the_same_gradient(tiny_policy):
    """Copies of a shared token add up to its mean (eq. 5 and 6); both equal one copy with the sum of the advantages."""
    model = tiny_policy.model.double()
    choose_forward(model)
    samples = pair(rewards=(1.0, 0.25))
    gradients = []
    for stage in (TRAINED, HARD):
        algorithm = replace(bound(stage), loss_terms=())
        batch = with_dropped(forest(samples), False)
        with torch.no_grad():
            lp_M = packed_logprobs(model, batch.packed)[0].double()
        batch = replace(batch, tokens={**batch.tokens, "lp_behav": lp_M})
        batch = with_weights(algorithm, with_advantages(algorithm, batch, 0), 0, stage.max_completion_length)
        model.zero_grad()
        micro_loss(algorithm, model, batch, step=0, temperature=1.0)[0].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    advantage_T = with_advantages(bound(TRAINED), forest(samples), 0).sampled("advantage").reshape(2, 5)
    model.zero_grad()
    for path, sample in enumerate(samples):
        ids = [*sample.prompt_ids, *sample.completion_ids]
        lp = model(torch.tensor([ids])).logits[0].log_softmax(-1)[1:-1].gather(1, torch.tensor(ids[2:])[:, None])[:, 0]
        (-(lp * advantage_T[path]).sum() / 10).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    assert max(float(of.abs().max()) for of in expected) > 1e-3
    for soft, hard, want in zip(*gradients, expected, strict=True):
        torch.testing.assert_close(soft, want, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(hard, want, atol=1e-6, rtol=1e-6)


def test_the_trainings_differ_in_branches_and_attribution_and_in_nothing_else():
    trained, hard, grpo = (stage.model_dump() for stage in (TRAINED, HARD, GRPO))
    assert trained["rollout"] == hard["rollout"]
    options = {"initial": 4, "base": 0.2, "weight": 0.4, "threshold": 0.5, "tokens": 8}
    assert (trained["rollout"].pop("use"), trained.pop("rollout")) == ("branching", options)
    hard.pop("rollout")
    assert grpo.pop("rollout")["use"] == "synchronous"
    assert trained == grpo
    assert hard.pop("advantage")[:2] == trained.pop("advantage")
    assert hard == trained
    models = {"start": "start", "trained": "trained", "hard": "hard", "grpo": "grpo"}
    assert dict(STAGES["report"].models) == models
    assert STAGES["report"].env == TRAINED.env


def test_questions_of_training_and_report_are_about_other_almanacs():
    asked = bind(STAGES["questions"].problems[0])()
    reported = bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in asked} & {row["id"] for row in reported}
    assert {row["family"] for row in asked} == {"almanac_product", "almanac_weight"}
    assert all("script" in json.loads(row["metadata"]) for row in asked)
