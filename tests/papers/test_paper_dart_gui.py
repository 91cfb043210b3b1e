"""DART: only uncertain turns are trained on, stored successes join groups that all fail, and workers are updated one by
one.

Not shown: screens as images; OSWorld; the utilisation of GPUs.
"""

import math
import re
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_prompt
from learning.environments.clock import VirtualClock
from learning.environments.episodes import Episodes
from learning.generation.replicas.replicas import Replicas
from learning.generation.services.rollout_service import RolloutService
from learning.generation.weights.protocol import Receipt
from learning.lookup import bind
from learning.parallel.actors import Threads
from learning.rewards.environment import earned
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation, Request, Sampling, Turn
from learning.samples.sample import History, Sample, SampleRequest, by_group
from learning.sampling.sampler import Sampler
from learning.sampling.trajectories import Trajectories
from learning.toy_tasks.environments.form import Environment
from learning.toy_tasks.forms import Form, forms
from schemas.recipe.load import load_recipe
from tests.papers.loops import Loop, by_chance

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "dart-gui.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
STAGE = STAGES["policy"]
ROWS = forms(size=8, split="train", seed=9)
TIMEOUT = 30


class Clerk:
    """An engine that decodes what an expert does next, a token at a time, and tells which version decoded it.

    `wrong`: problems whose first choice it gets wrong, always.
    """

    def __init__(self, tokenizer, wrong=()):
        self.tokenizer, self.wrong, self.version = tokenizer, set(wrong), 0
        self.rows = {row["prompt"][0]["content"]: row for row in ROWS}
        self.going = threading.Event()
        self.going.set()

    def sync(self, version):
        self.version = version

    def generate(self, requests, sampling):
        raise AssertionError("it goes step by step")

    def flight(self, sampling):
        return Desk(self)

    def says(self, prompt):
        """The ids of the next turn of a conversation."""
        turns = re.findall(r"<(user|assistant)>(.*?)<eos>", self.tokenizer.decode(prompt), re.DOTALL)
        row = self.rows[turns[0][1]]
        form = Form(row)
        for role, text in turns:
            if role == "assistant":
                form.act(text)
        act = "save" if row["id"] in self.wrong and form.button == "save" else form.expert()
        return [*self.tokenizer.encode(act, add_special_tokens=False), self.tokenizer.eos_token_id]


class Desk:
    """Its completions in flight."""

    def __init__(self, clerk):
        self.clerk, self.open = clerk, []

    @property
    def running(self):
        return len(self.open)

    def add(self, ticket, request):
        left = self.clerk.says([*request.prompt_ids, *request.begun])
        self.open += [[ticket, request.first + i, [], [], list(left)] for i in range(request.n)]

    def step(self):
        assert self.clerk.going.wait(TIMEOUT)
        ended = []
        for one in self.open:
            one[2].append(one[4].pop(0))
            one[3].append((self.clerk.version, 1))
            ended += [one] if not one[4] else []
        self.open = [one for one in self.open if one[4]]
        return [(one[0], told(one, "stop")) for one in ended]

    def suspend(self, tickets=None):
        out, self.open = self.open, []
        return [(one[0], told(one, "suspended")) for one in out]


def told(one, finish):
    _, sample, ids, versions, _ = one
    return Generation(ids, [-0.5] * len(ids), finish, [0.1] * len(ids), versions, sample=sample)


class Service:
    """Two rollout workers, each in a thread; the first takes new weights when it is let."""

    def __init__(self, tokenizer):
        self.tokenizer, self.clerks, self.services, self.loads = tokenizer, [], [], []
        self.loading, self.let = threading.Event(), threading.Event()
        self.going = threading.Event()
        self.going.set()
        self.lock = threading.Lock()

    def make(self):
        clerk = Clerk(self.tokenizer)
        clerk.going = self.going
        service = RolloutService(clerk, partial(self.take, clerk))
        with self.lock:
            service.counts["number"] = float(len(self.services))
            self.clerks.append(clerk)
            self.services.append(service)
        return service.start()

    def told(self, number):
        """Wait until a worker has been told of new weights, in the middle of its work."""
        service = self.services[number]
        with service.changed:
            assert service.changed.wait_for(lambda: service.running and service.inbox, TIMEOUT)

    def take(self, clerk, receipt):
        if clerk is self.clerks[0]:
            self.loading.set()
            assert self.let.wait(TIMEOUT)
        clerk.sync(receipt.version)
        self.loads.append((self.clerks.index(clerk), receipt.version))

    @staticmethod
    def publish(version):
        return Receipt(version, "nowhere")

    @staticmethod
    def wait():
        """Nothing is on its way."""


@pytest.fixture
def rollout(tiny_policy):
    """The recipe's rollout service and its environment cluster."""
    made = Service(tiny_policy.tokenizer)
    actors = Threads({"rollout": STAGE.resources.rollout.workers})
    replicas = Replicas(actors, actors.start("rollout", made.make), lambda: made)
    order = [int(one["number"]) for one in replicas.stats()]
    made.clerks = [made.clerks[number] for number in order]
    made.services = [made.services[number] for number in order]
    how = {"max_turns": STAGE.env.max_turns, "workers": STAGE.env.workers, "order": STAGE.env.order}
    episodes = Episodes(replicas, Environment(), tokenizer=tiny_policy.tokenizer, **how)
    yield made, episodes
    made.let.set()
    made.going.set()
    episodes.close()


def asked(policy, rows, n=1):
    return [(i, Request(encode_prompt(policy.tokenizer, row["prompt"]), n, i, row=row)) for i, row in enumerate(rows)]


def until(episodes, condition):
    completed = []
    while not condition(completed):
        completed += episodes.collect(0.05)
    return [generation for _, generation in completed]


def versions(generation):
    return {version for version, _ in generation.versions}


def test_the_surest_of_five_steps_is_masked_and_nothing_else():
    """Step entropies 0.1, 0.5, 0.2, 0.9, 0.4 at the recipe's share."""
    (select,) = (bind(use, "token_mask.0") for use in STAGE.token_mask)
    entropy_T = torch.tensor([0.05, 0.15, 0.5, 0.1, 0.3, 0.9, 0.4, 0.4, 0.4], dtype=torch.float64)
    turn_T = torch.tensor([0, 0, 1, 2, 2, 3, 4, 4, 4])
    path_T = torch.zeros_like(turn_T)
    supplies = {"entropy_behav_T": entropy_T, "turn_T": turn_T, "path_T": path_T, "group_T": path_T}
    assert set(turn_T[~select.ask(0, supplies)].tolist()) == {0}
    # A token is masked for its step: that of entropy 0.1 in a step of 0.2 is trained on.
    assert select.ask(0, supplies).tolist() == [False] * 2 + [True] * 7


def test_the_surest_steps_are_those_of_a_group():
    """Five steps of each of two groups, of which one is surer throughout: one step of each is left out."""
    (select,) = (bind(use, "token_mask.0") for use in STAGE.token_mask)
    entropy_T = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 1.1, 1.2, 1.3, 1.4, 1.5], dtype=torch.float64)
    path_T = torch.arange(10) // 5
    supplies = {"entropy_behav_T": entropy_T, "turn_T": torch.arange(10) % 5, "path_T": path_T, "group_T": path_T}
    assert (~select.ask(0, supplies)).nonzero()[:, 0].tolist() == [0, 5]


def test_an_episode_counts_once_for_each_of_its_turns():
    """A success of one turn and a failure of three, of 1 and of 2, 1 and 5 tokens: the mean over turns is 1/4."""
    row = {"id": "x", "family": "f"}
    sizes = {0: [1], 1: [2, 1, 5]}
    samples = [
        Sample(
            row,
            0,
            "policy",
            [1],
            [7] * sum(turns),
            [-0.5] * sum(turns),
            "stop",
            "",
            scores={"earned": reward},
            reward=reward,
            turns=[Turn(size) for size in turns],
        )
        for reward, turns in ((1.0, sizes[0]), (0.0, sizes[1]))
    ]
    algorithm = bind_algorithm(STAGE, {})
    made = with_advantages(algorithm, with_dropped(forest(samples), False), 0)
    deviation = (4 * 0.25 * 0.75 / 3) ** 0.5
    want = [0.75 / deviation] + [-0.25 / deviation] * 8
    assert made.sampled("advantage").tolist() == pytest.approx(want, abs=1e-5)
    bare = algorithm.loss_aggregation.ask(0, {"batch": made, "max_completion_length": 9})
    assert bare.tolist() == pytest.approx([1 / 4, *[1 / 8] * 2, 1 / 4, *[1 / 20] * 5], rel=1e-12)


@pytest.mark.parametrize("rate", [0.5, 0.6, 0.7, 0.75, 0.875, 1.0])
def test_easier_tasks_get_as_many_rollouts_as_the_released_code_gives_them(rate):
    plan, known = bind_sampling_slots(STAGE, {"extra_samples.1.data": Path()}).prompt_sampler, History()
    known.rates = {row["id"]: [rate] for row in ROWS}
    supplies = {"rows": ROWS, "num_groups": 8, "n": 8, "seed": 1, "step": 0, "states": {}, "history": known}
    assert plan.ask(0, supplies)[0].n == (8 if rate <= 0.6 else math.floor(9 / rate - 7 + 1e-9))


def test_importance_weights_are_truncated_at_two():
    (correct,) = (bind(use, "importance_correction.0") for use in STAGE.importance_correction)
    behav_T = torch.tensor([-2.0, -1.0, -1.0], dtype=torch.float64)
    nothing_T = torch.zeros(3, dtype=torch.bool)
    prox_T = behav_T + torch.tensor([3.0, 0.5, 2.0], dtype=torch.float64).log()
    supplies = {"lp_prox_T": prox_T, "lp_behav_T": behav_T, "external_T": nothing_T, "broken_T": nothing_T}
    torch.testing.assert_close(correct.ask(0, supplies), torch.tensor([2.0, 0.5, 2.0], dtype=torch.float64))


def test_a_worker_completes_at_its_version_while_the_other_loads_the_next(tiny_policy, rollout):
    made, episodes = rollout
    made.going.clear()
    episodes.submit(asked(tiny_policy, ROWS), Sampling(1.0, 220))
    episodes.sync(1, each=STAGE.rollout.options["sync"] == "each")
    made.told(0)
    made.going.set()
    assert made.loading.wait(TIMEOUT)
    # Half of the episodes had their turn at the worker that loads; the others go on at the other one, to their ends.
    ended = until(episodes, lambda completed: len(completed) == len(ROWS) // 2)
    assert made.loads == []
    assert all(versions(one) == {0} for one in ended)
    assert all(sum(turn.reward for turn in one.turns) == 1.0 for one in ended)
    made.let.set()
    rest = until(episodes, lambda completed: len(completed) == len(ROWS) // 2)
    assert all(1 in versions(one) for one in rest)
    assert made.loads == [(0, 1), (1, 1)]


def test_with_one_synchronisation_for_all_none_does(tiny_policy, rollout):
    made, episodes = rollout
    made.going.clear()
    episodes.submit(asked(tiny_policy, ROWS), Sampling(1.0, 220))
    trainer = threading.Thread(target=episodes.sync, args=(1,))
    trainer.start()
    made.told(0)
    made.told(1)
    made.going.set()
    assert made.loading.wait(TIMEOUT)
    assert trainer.is_alive()
    made.let.set()
    trainer.join(TIMEOUT)
    completed = until(episodes, lambda completed: len(completed) == len(ROWS))
    assert all(max(versions(one)) == 1 for one in completed)


def test_the_stage_trains_on_whole_episodes_of_bounded_age_from_four_environments(tiny_policy, rollout):
    made, episodes = rollout
    made.let.set()
    seen = set()

    class Watched(Environment):
        def begin(self, row, seed):
            episode = super().begin(row, seed)
            step = episode.step
            episode.step = lambda action: (seen.add(threading.current_thread()), step(action))[1]
            return episode

    episodes.environment = Watched()
    policy = replace(tiny_policy, max_length=512)
    stage = STAGE.model_copy(update={"extra_samples": []})
    loop = Loop(stage, policy, ROWS, num_groups=4, n=2, source=episodes, plan=by_chance, tokens=220, max_steps=6)
    try:
        for step in range(6):
            samples = loop.iterate()
            ages = {step - version for sample in samples for version in sample.versions}
            assert min(ages) >= 0
            assert max(ages) <= STAGE.rollout.options["max_staleness"]
            assert [sample.reward for sample in samples] == [1.0] * 8
            assert all(sample.num_turns == int(sample.row["family"][-1]) for sample in samples)
    finally:
        loop.stream.close()
    assert len(seen) <= STAGE.env.workers == 4


def test_a_group_in_which_all_failed_gets_one_success_of_the_pool_and_a_mixed_one_none(tiny_policy, tmp_path):
    """The pool is what a stage before has sampled; an episode comes with its turns, of which the model's are learnt."""
    tokenizer = tiny_policy.tokenizer
    good, bad = (played(tiny_policy, Clerk(tokenizer, wrong)) for wrong in ((), [row["id"] for row in ROWS]))
    assert earned(good) == [1.0] * len(ROWS)
    assert earned(bad) == [0.0] * len(ROWS)
    pool = Trajectories(tmp_path, 1.0, 0, partial(decode, tokenizer))
    pool.add(0, [*good[:1], *bad[1:]], [None] * len(ROWS))
    pool.publish(tmp_path, [])
    parts = [
        bind(use, f"extra_samples.{i}", {"extra_samples.1.data": tmp_path}) for i, use in enumerate(STAGE.extra_samples)
    ]
    samples = [replace(bad[0], group=0) for _ in range(4)]
    samples += [replace(one, group=1) for one in (good[1], bad[1], bad[1])]
    samples += [replace(bad[2], group=2) for _ in range(2)]
    sampler = sampler_of(tiny_policy)
    for part in parts:
        samples = part.ask(0, {"samples": samples, "states": {}, "seed": 0, "sampler": sampler})
    groups = by_group(samples)
    assert [[sample.source for sample in members] for members in groups.values()] == [
        ["policy"] * 3 + ["replay"],
        ["policy"] * 3,
        ["policy"] * 2,
    ]
    (added,) = (sample for sample in groups[0] if sample.source == "replay")
    assert earned([added]) == [1.0]
    learnt = decode(tokenizer, torch.tensor(added.completion_ids)[torch.tensor(added.own)].tolist())
    goal = Form(ROWS[0]).goal
    assert sorted(re.findall("|".join([*goal.values(), "next", "save"]), learnt)) == sorted([*goal.values(), "save"])
    batch = forest([replace(one, scores={"earned": 0.0}, reward=0.0) for one in groups[0]])
    assert int(batch.tokens["learn"].sum()) == sum(sum(one.own) for one in groups[0])


def test_hard_problems_get_more_rollouts_and_longer_episodes_from_the_same_budget():
    plan, history = bind(STAGE.prompt_sampler, "prompt_sampler"), History()
    easy, hard = ROWS[:6], ROWS[6:]
    history.rates = {row["id"]: [1.0] for row in easy} | {row["id"]: [0.0] for row in hard}
    history.turns = {row["id"]: int(row["family"][-1]) for row in easy}
    n = STAGE.num_generations
    supplies = {"rows": ROWS, "num_groups": 4, "n": n, "seed": 0, "states": {}, "history": history}
    requests = [request for step in range(6) for request in plan.ask(step, {**supplies, "step": step})]
    assert sum(request.n for request in requests) == 6 * 4 * n
    of = {row["id"]: [request for request in requests if request.row["id"] == row["id"]] for row in ROWS}
    assert {min(request.n for request in of[row["id"]]) for row in easy} == {STAGE.prompt_sampler.options["least"]}
    assert {max(request.n for request in of[row["id"]]) for row in hard} == {n}
    spare = STAGE.prompt_sampler.options["spare_turns"]
    assert all(request.row["max_turns"] == int(row["family"][-1]) + spare for row in easy for request in of[row["id"]])
    assert all("max_turns" not in request.row for row in hard for request in of[row["id"]])


def test_episodes_that_go_on_by_themselves_keep_the_environments_busy(tiny_policy):
    """On a clock of events: four environments, and answers that take 1 to 40 seconds, by what they show."""

    def latency(outcome):
        return float(1 + sum(outcome.observation.encode()) % 40)

    spent = {}
    for order in ("each", "together"):
        clock = VirtualClock(latency, decode_s=0.1, workers=STAGE.env.workers)
        samples = played(tiny_policy, Clerk(tiny_policy.tokenizer), clock=clock, order=order)
        assert earned(samples) == [1.0] * len(ROWS)
        seconds = sum(turn.seconds for sample in samples for turn in sample.turns)
        spent[order] = (clock.now, seconds)
    assert spent["each"][1] == spent["together"][1]
    assert spent["each"][0] < 0.9 * spent["together"][0]


def sampler_of(policy, engine=None):
    return Sampler(engine or SimpleNamespace(), replace(policy, max_length=512), Sampling(1.0, 220), seed=0, step=0)


def played(policy, engine, **how):
    """The episodes of the rows, by an engine."""
    episodes = Episodes(engine, Environment(), tokenizer=policy.tokenizer, max_turns=STAGE.env.max_turns, **how)
    sampler = sampler_of(policy, episodes)
    samples = sampler.sample([SampleRequest(row) for row in ROWS])
    for sample, score in zip(samples, earned(samples), strict=True):
        sample.scores, sample.reward = {"environment.earned": score}, score
    return samples
