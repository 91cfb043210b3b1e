"""INSPO: instructions are drawn by what they earn and pruned; new ones enter if the current policy does best with them.

Slots are those of the recipe; completions are dictated. Not shown: the quality of instructions that a model writes.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from learning.collection.instructions import compute_chances
from learning.data.chat import decode, encode_completion
from learning.data.rows import read_rows, write_rows
from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import History, Sample
from learning.sampling.iteration_context import IterationContext
from learning.sampling.sampler import Sampler
from schemas.recipe.load import load_recipe
from tasks.context import Context

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "inspo.yaml")
STAGES = LOADED.stages
TRAINED, POPULATION, FIXED = (STAGES[name] for name in ("trained", "population", "fixed"))
ROWS = bind(STAGES["questions"].problems[0])()
FIRST = ["guess", "look hastily", "look", "look well"]


class Obeying:
    """An engine that answers rightly under some instructions only, and counts what it is asked."""

    def __init__(self, tokenizer, right=()):
        self.tokenizer, self.right, self.asked = tokenizer, set(right), []

    def generate(self, requests, sampling):
        return [[self.write(request) for _ in range(request.n)] for request in requests]

    def write(self, request):
        shown = decode(self.tokenizer, request.prompt_ids)
        row = next(row for row in ROWS if shown.endswith(row["prompt"][-1]["content"]))
        text = shown.removesuffix(row["prompt"][-1]["content"])
        self.asked.append(text)
        ids = encode_completion(
            self.tokenizer, [{"role": "assistant", "content": row["answer"] if text in self.right else "no"}]
        )
        return Generation(ids, [-1.0] * len(ids), "stop")

    def sync(self, version):
        pass


@pytest.fixture
def run(tiny_policy):
    """Run sampling of iterations with the slots of a stage; return their samples and the memory after each."""
    policy = Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)

    def run_them(steps, right=(), stage=TRAINED, states=None, groups=8, start=0):
        states, made = {} if states is None else json.loads(json.dumps(states)), []
        slots = bind_sampling_slots(stage, {})
        for step in range(start, start + steps):
            engine = Obeying(policy.tokenizer, right)
            episodes = wrap_in_environment(engine, stage.env, policy.tokenizer, {}, policy.max_length)
            sampler = Sampler(episodes, policy, Sampling(1.0, 60), 7, step)
            context = IterationContext(
                step, 7, ROWS, groups, 2, states=states, sampler=sampler, history=History(), metrics={}
            )
            samples = collect_samples(slots, context, {})
            made.append((samples, json.loads(json.dumps(states)), engine))
        return made

    return run_them


def population(states):
    return {entry["text"]: entry["weight"] for entry in states["prompt_sampler"]["population"]}


def test_instructions_are_drawn_by_the_softmax_of_their_weights():
    assert compute_chances([1.0, 0.0], 1.0) == pytest.approx([0.731, 0.269], abs=5e-4)
    assert compute_chances([1.0, 0.0], 0.25) == pytest.approx([0.982, 0.018], abs=5e-4)
    use = TRAINED.prompt_sampler.model_copy(update={"temperature": 1.0})
    state = {"population": [{"text": "a", "weight": 1.0}, {"text": "b", "weight": 0.0}]}
    supplies = {"rows": ROWS, "num_groups": 4000, "n": 2, "seed": 0, "step": 0, "rng": np.random.default_rng(0)}
    drawn = bind(use, "prompt_sampler").ask(0, supplies | {"state": state, "sampler": None})
    shares = Counter(request.row["instruction"] for request in drawn)
    assert shares["a"] / 4000 == pytest.approx(0.731, abs=0.02)
    assert TRAINED.prompt_sampler.options["temperature"] == 0.25


def test_all_completions_of_a_group_have_one_instruction_as_their_system_message(run):
    ((samples, states, engine),) = run(1)
    groups = {}
    for sample in samples:
        groups.setdefault(sample.group, set()).add(sample.row["instruction"])
    assert len(groups) == 8
    assert all(len(texts) == 1 for texts in groups.values())
    assert len(set().union(*groups.values())) > 1
    assert set(engine.asked) == set().union(*groups.values()) <= set(FIRST)
    assert {sample.row["family"] for sample in samples} == set(engine.asked)
    assert list(population(states)) == FIRST


def test_only_what_was_sampled_moves_towards_its_mean_reward(run):
    before = {"prompt_sampler": {"population": [{"text": text, "weight": 0.5} for text in FIRST]}}
    ((samples, states, _),) = run(1, right=FIRST[:3], states=before, groups=3)
    sampled = {sample.row["instruction"] for sample in samples}
    assert 0 < len(sampled & set(FIRST[:3])) <= len(sampled) < 4
    assert population(states) == {
        text: pytest.approx(0.5 + 0.3 * ((text in FIRST[:3]) - 0.5)) if text in sampled else 0.5 for text in FIRST
    }
    assert {sample.reward for sample in samples} <= {0.0, 1.0}


def test_failures_are_remembered_as_whole_episodes(run):
    ((samples, states, _),) = run(1, right=["look", "look well"])
    failed = [sample for sample in samples if sample.reward == 0]
    kept = states["prompt_sampler"]["experience"]
    assert [(one["instruction"], one["said"], one["reward"]) for one in kept] == [
        (sample.row["instruction"], "no", 0.0) for sample in failed
    ]
    assert 0 < len(kept) < len(samples)


def weighted(*weights):
    return {
        "prompt_sampler": {
            "population": [{"text": text, "weight": weight} for text, weight in zip(FIRST, weights, strict=True)],
            "experience": [{"instruction": "look well", "prompt": "q", "said": "no", "reward": 0.0}],
        }
    }


def test_the_lowest_weight_is_pruned_and_a_verified_instruction_enters(run):
    ((_, states, engine),) = run(1, right=["look with care"], states=weighted(0.3, 0.1, 0.6, 0.9), start=5)
    now = population(states)
    assert list(now) == ["guess", "look", "look well", "look with care"]
    assert now["look with care"] >= 0.7
    # It was played by the current policy on four problems before any group was sampled.
    assert engine.asked[:8] == ["look with care"] * 8


def test_pruning_waits_for_its_iteration(run):
    for start in (0, 1, 4, 6):
        ((_, states, _),) = run(1, right=FIRST, states=weighted(0.3, 0.1, 0.6, 0.9), start=start)
        assert list(population(states)) == FIRST
    assert TRAINED.prompt_sampler.options["every"] == 5
    assert TRAINED.prompt_sampler.options["prune"] == 1


WRITTEN = ["bad", "good"]


def writes(row, rng):
    """A proposer that writes one instruction after the other."""
    WRITTEN.append(WRITTEN.pop(0))
    return WRITTEN[-1]


def test_a_proposal_that_is_not_among_the_best_under_the_current_policy_does_not_enter(run):
    use = TRAINED.prompt_sampler.model_copy(update={"proposer": {"use": f"{__name__}:writes"}})
    stage = TRAINED.model_copy(update={"prompt_sampler": use})
    for right, enters in ((["good"], "good"), (["bad"], "bad")):
        ((_, states, engine),) = run(1, right=right, stage=stage, states=weighted(0.3, 0.1, 0.6, 0.9), start=5)
        assert list(population(states)) == ["guess", "look", "look well", enters]
        assert sorted(engine.asked[:16]) == ["bad"] * 8 + ["good"] * 8


def test_the_proposer_sees_the_population_and_what_failed():
    seen = []
    bound = bind(TRAINED.prompt_sampler, "prompt_sampler")
    inner = bound.options["proposer"]

    def spy(row, rng):
        seen.append(row)
        return "look with care"

    object.__setattr__(inner, "function", spy)
    supplies = {"rows": ROWS, "num_groups": 1, "n": 2, "seed": 0, "step": 5, "rng": np.random.default_rng(0)}
    sampler = Silent()
    bound.ask(0, supplies | {"state": weighted(0.3, 0.1, 0.6, 0.9)["prompt_sampler"], "sampler": sampler})
    about = json.loads(seen[0]["metadata"])
    assert [entry["text"] for entry in about["instructions"]] == ["guess", "look", "look well"]
    assert [one["instruction"] for one in about["experience"]] == ["look well"]
    assert "0.900 look well" in seen[0]["prompt"][0]["content"]
    assert "look well | q | no" in seen[0]["prompt"][0]["content"]


class Silent:
    """A sampler whose completions are all wrong."""

    def sample(self, requests):
        return [
            Sample(one.row, g, "policy", [1], [2], [-1.0], "stop", "no")
            for g, one in enumerate(requests)
            for _ in range(one.n)
        ]


def show(sample):
    """Everything but the seconds of a real clock."""
    plain = sample.to_json()
    return plain | {"turns": [turn | {"seconds": 0.0} for turn in plain["turns"]]}


def test_a_resumed_run_is_bit_identical(run):
    """The population, its weights and the failures are in the memory that checkpoints hold."""
    whole = run(12, right=["look", "look with care"])
    states = whole[6][1]
    rest = run(5, right=["look", "look with care"], states=states, start=7)
    for (samples, after, _), (again, afterwards, _) in zip(whole[7:], rest, strict=True):
        assert [show(one) for one in samples] == [show(one) for one in again]
        assert after == afterwards
    assert "look with care" in population(whole[-1][1])
    assert list(population(whole[-1][1])) != list(population(states))


def test_the_comparators_differ_in_their_instructions_alone():
    mine, still, fixed = (STAGES[name].model_dump(mode="json") for name in ("trained", "population", "fixed"))
    assert {key for key in mine if mine[key] != still[key]} == {"prompt_sampler"}
    assert POPULATION.prompt_sampler.options["every"] > POPULATION.max_steps
    assert {key for key in mine if mine[key] != fixed.get(key)} == {"prompt_sampler", "extra_samples", "prompts"}
    (use,) = STAGES["fixed_questions"].problems
    assert (use.options["system"], FIXED.prompts) == ("look", "fixed_questions")
    assert TRAINED.prompt_sampler.options["instructions"] == FIRST
    known = {use.options["of"]["system"] for use in STAGES["lessons"].problems}
    assert known == {*FIRST, "look with care"}


def test_the_report_asks_with_the_instruction_of_the_last_iterations(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("seen", "rows"):
        (tmp_path / name).mkdir()
    steps = [(1, "guess")] * 9 + [(16, "look")] * 3 + [(19, "look well")] * 4 + [(20, "look")] * 2
    table = pa.table({"step": pa.array([s for s, _ in steps], pa.int32()), "family": [text for _, text in steps]})
    pq.write_table(table, tmp_path / "seen" / "trajectories.parquet")
    write_rows(tmp_path / "rows", "prompts", ROWS[:3])
    inputs = {"trajectories": tmp_path / "seen", "prompts": tmp_path / "rows"}
    function = bind(STAGES["best"].function, "function")
    made = function(Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0))
    assert made == {"instruction": "look"}
    rows = read_rows(tmp_path / "out" / "outputs" / "prompts", "prompts")
    assert [row["prompt"] for row in rows] == [
        [{"role": "system", "content": "look"}, *row["prompt"]] for row in ROWS[:3]
    ]
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS[:3]]
    assert {port.path: port.source or port.steps for port in LOADED.ports("best")} == {
        "inputs.trajectories": ("trained",),
        "inputs.prompts": ("held_out",),
    }
    assert STAGES["report"].prompts == "best.prompts"
