"""Dr. MAS: advantages of an agent are normalised over the episodes in which it acted; agents have models of their own.

The recipe's own stages play with tiny models and a library of four documents. Not shown: spikes of the gradients of 7B
agents.
"""

import hashlib
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion
from learning.data.rows import write_rows
from learning.rl import team as team_module
from learning.rl.team import role_columns, run_iteration, select_trained
from learning.samples.conversation import RoleSample
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import SampleRequest
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse
from tasks.context import Context
from tasks.rl_roles import make_team

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "dr-mas.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, GLOBAL = STAGES["trained"], STAGES["global"]
FACTS = {"river of bam?": "ulo", "hill of bam?": "pin", "river of cet?": "oda", "hill of cet?": "mik"}
REWARDS = [1.0, 1.0, 0.0, 0.0]


def row(kind, question, **more):
    prompt = [{"role": "user", "content": question}]
    return {
        "id": question,
        "prompt": prompt,
        "answer": FACTS.get(question, ""),
        "family": kind,
        "metadata": "{}",
    } | more


def put_in_document(question):
    relation, town = question.removesuffix("?").split(" of ")
    return f"{town} {relation}"


@pytest.fixture
def make(tiny_policy_folder, tmp_path):
    """Make the team of a stage in a folder of its own."""
    for name in ("facts", "corpus"):
        (tmp_path / name).mkdir()
    write_rows(tmp_path / "facts", "prompts", [row("atlas", question) for question in FACTS])
    documents = [
        row("atlas", put_in_document(question), completion=[{"role": "assistant", "content": fact}])
        for question, fact in FACTS.items()
    ]
    write_rows(tmp_path / "corpus", "chat", documents)
    models = dict.fromkeys(("model", "policies.searcher.model"), tiny_policy_folder)
    inputs = {**models, "prompts": tmp_path / "facts", "roles.library.script.data": tmp_path / "corpus"}

    def make_from(stage, **changes):
        small = {"generation_batch_size": 16, "num_generations": 8, "max_steps": 3, **changes}
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "checkpoints").mkdir(parents=True)
        return make_team(stage.model_copy(update=small), Context(inputs, folder, folder / "checkpoints", seed=1))

    return make_from


def with_reward(name):
    return {"rewards": [RewardUse(use=f"{__name__}:{name}")]}


def with_chance(stage, chance):
    return {"turn_order": stage.turn_order.model_copy(update={"chance": {"searcher": chance}})}


def sample(conversation, role, reward):
    made = RoleSample(
        {"id": "q", "family": "atlas"},
        int(role == "solver"),
        "policy",
        [1],
        [5, 6],
        [-1.0, -1.0],
        "stop",
        "",
        role=role,
        policy=role if role == "searcher" else "model",
        conversation=conversation,
    )
    made.scores, made.reward = {"roles.outcome": reward}, reward
    return made


def find_advantages(stage):
    """The advantages of each agent: the solver acts in all four episodes, the searcher in the first three."""
    samples = [sample(n, "solver", reward) for n, reward in enumerate(REWARDS)]
    samples += [sample(n, "searcher", reward) for n, reward in enumerate(REWARDS[:3])]
    algorithm, advantages = bind_algorithm(stage, {}), {}
    for role, policy in (("solver", "model"), ("searcher", "searcher")):
        own = select_trained(samples, policy)
        batch = forest(own).with_paths(**role_columns(own, samples))
        batch = with_advantages(algorithm, batch, 0, states={}, rows=[one.row for one in own])
        advantages[role] = batch.sampled("advantage")[::2].tolist()
    return advantages


def test_an_agent_is_compared_over_the_episodes_in_which_it_acted():
    advantages = find_advantages(TRAINED)
    assert advantages["searcher"] == pytest.approx([0.5**0.5, 0.5**0.5, -(2**0.5)], abs=1e-3)
    assert advantages["solver"] == pytest.approx([1, 1, -1, -1], abs=1e-3)


def test_one_baseline_for_all_agents_is_that_of_all_episodes():
    advantages = find_advantages(GLOBAL)
    assert advantages["searcher"] == pytest.approx([1, 1, -1], abs=1e-3)
    assert advantages["solver"] == pytest.approx([1, 1, -1, -1], abs=1e-3)


def test_the_two_stages_differ_in_the_baseline_only():
    ours, theirs = (stage.model_dump(mode="json") for stage in (TRAINED, GLOBAL))
    assert {key for key in ours if ours[key] != theirs[key]} == {"advantage"}


def digest_of_weights(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def test_a_batch_with_turns_of_the_solver_alone_leaves_the_searcher_as_it_was(make):
    made = make(TRAINED, **with_reward("anything"), **with_chance(TRAINED, 0.0))
    weights = {name: digest_of_weights(learner.policy.model) for name, learner in made.learners.items()}
    run_iteration(made, 0)
    after = {name: digest_of_weights(learner.policy.model) for name, learner in made.learners.items()}
    assert after["searcher"] == weights["searcher"]
    assert after["model"] != weights["model"]


def anything(completions):
    return [float(len(text) % 3) for text in completions]


def test_every_agent_has_its_own_learning_rate(make):
    made = make(TRAINED)
    run_iteration(made, 0)
    rates = {name: learner.optimizer.param_groups[0]["lr"] for name, learner in made.learners.items()}
    assert rates == {"model": pytest.approx(2e-4), "searcher": pytest.approx(4e-4)}


class Dictated:
    """An engine that answers prompts by a function, and keeps them."""

    def __init__(self, policy, say):
        self.policy, self.say, self.prompts = policy, say, []

    def generate(self, requests, sampling):
        return [[self.answer(request, request.first + i) for i in range(request.n)] for request in requests]

    def answer(self, request, number):
        self.prompts.append(decode(self.policy.tokenizer, request.prompt_ids))
        text = self.say(self.prompts[-1], number)
        ids = encode_completion(self.policy.tokenizer, [{"role": "assistant", "content": text}])
        return Generation(ids, [-1.0] * len(ids), "stop")


def play(made, question, say):
    """Samples of four episodes, scored as the recipe says, and the prompts of each agent."""
    engines = {role: Dictated(made.main.policy, words) for role, words in say.items()}
    for role, engine in engines.items():
        object.__setattr__(made.speakers[role], "engine", engine)
    sampler = made.make_sampler(Sampling(1.0, 8), 3, 0)
    samples = sampler.sample([SampleRequest(row("atlas", question), 4)])
    made.main.slots.score(samples, {}, team_module.iteration_context(made.main, 0))
    return samples, {role: engine.prompts for role, engine in engines.items()}


def test_the_solver_answers_with_the_document_that_the_query_finds(make):
    made = make(TRAINED, **with_chance(TRAINED, 1.0))
    say = {"searcher": lambda prompt, number: ["bam river", "cet hill"][number % 2], "solver": lambda prompt, _: "ulo"}
    samples, prompts = play(made, "river of bam?", say)
    assert all("river of bam?" in prompt for prompt in prompts["searcher"])
    assert [("bam river ulo; river of bam?" in p, "cet hill mik; river" in p) for p in prompts["solver"]] == [
        (True, False),
        (False, True),
        (True, False),
        (False, True),
    ]
    assert {(one.role, one.policy) for one in samples} == {("searcher", "searcher"), ("solver", "model")}
    groups = {role: {one.group for one in samples if one.role == role} for role in ("searcher", "solver")}
    assert [len(own) for own in groups.values()] == [1, 1]
    assert groups["searcher"] != groups["solver"]


def test_both_earn_what_the_solver_answers_is_worth(make):
    made = make(TRAINED, **with_chance(TRAINED, 1.0))
    say = {"searcher": lambda *_: "bam river", "solver": lambda prompt, number: ["ulo", "pin"][number % 2]}
    samples, _ = play(made, "river of bam?", say)
    rewards = {role: [one.reward for one in samples if one.role == role] for role in ("searcher", "solver")}
    assert rewards == {"searcher": [1, 0, 1, 0], "solver": [1, 0, 1, 0]}


def test_the_searcher_is_left_out_of_a_quarter_of_the_episodes(make):
    made = make(TRAINED)
    say = {"searcher": lambda *_: "bam river", "solver": lambda *_: "ulo"}
    sampler = made.make_sampler(Sampling(1.0, 8), 3, 0)
    for role, words in say.items():
        object.__setattr__(made.speakers[role], "engine", Dictated(made.main.policy, words))
    samples = sampler.sample([SampleRequest(row("atlas", "river of bam?"), 400)])
    shares = [sum(one.role == role for one in samples) / 400 for role in ("searcher", "solver")]
    assert shares == [pytest.approx(0.75, abs=0.06), 1.0]
    # Without a query the library says nothing.
    alone = {one.conversation for one in samples} - {one.conversation for one in samples if one.role == "searcher"}
    texts = {decode(made.main.policy.tokenizer, one.prompt_ids) for one in samples if one.conversation in alone}
    assert len(texts) == 1
    assert "ulo" not in texts.pop()


def test_the_reports_compare_both_stages_agent_by_agent():
    assert STAGES["report"].models == {"start": "first_solver", "trained": "trained", "global": "global"}
    searchers = {"start": "first_searcher", "trained": "trained.searcher", "global": "global.searcher"}
    assert STAGES["report_searcher"].models == searchers


def test_gradients_of_each_agent_are_finite_and_its_own(make):
    made = make(TRAINED, **with_reward("anything"))
    run_iteration(made, 0)
    for learner in made.learners.values():
        grads = [p.grad for p in learner.policy.model.parameters() if p.grad is not None]
        assert grads
        assert all(bool(torch.isfinite(grad).all()) for grad in grads)
