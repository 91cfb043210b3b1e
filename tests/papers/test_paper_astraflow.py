"""AstraFlow: an idle policy delays no other, a rollout worker may die, and data algorithms are a list.

Not shown: regions, machines of several kinds, 2.7 times the speed. Policies take turns in rounds of stages: a paused
one delays the next round. A worker that has died is replaced; none is added.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from flows.planning.compile import compile_recipe
from learning.algorithm.composition import bind_algorithm
from learning.data.rows import write_rows
from learning.generation.engines.torch import Engine
from learning.generation.replicas.replicas import Replicas
from learning.generation.services.rollout_service import RolloutService
from learning.lookup import bind
from learning.models.checksum import compute_checksum
from learning.models.policy import load_policy
from learning.parallel.actors import Threads
from learning.problems.second_opinions import look_up_documents
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import bind_sampling_slots, keep_groups
from learning.rl.state import resume, save
from learning.samples.engine_protocol import Request, Sampling
from learning.samples.sample import History
from learning.sampling.iteration_context import IterationContext
from learning.toy_tasks.atlas import look_up
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from tasks import rl
from tasks.context import Context
from tests.papers.decoupled_ratio import check_decoupled_ratio

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "astraflow.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages


@pytest.fixture(scope="module")
def facts():
    return bind(STAGES["facts"].problems[0])()


@pytest.fixture
def corpus(tmp_path):
    rows = bind(STAGES["corpus"].problems[0])()
    for row in rows:
        row["completion"] = [{"role": "assistant", "content": row["answer"]}]
    (tmp_path / "corpus").mkdir()
    write_rows(tmp_path / "corpus", "chat", rows)
    return tmp_path / "corpus"


def test_a_good_query_finds_the_document_that_has_the_answer(facts, corpus):
    assert len(facts) == 52
    for row in facts:
        query = look_up(row, np.random.default_rng(0))
        assert look_up_documents([query], corpus) == [f"{query} {row['answer']}"]


# A policy that stands still


def loop_of(name, where, seed, folders):
    """The recipe's stage in small, ready to go on where its checkpoints say."""
    small = {"generation_batch_size": 4, "num_generations": 2, "max_steps": 4, "filter_groups": None}
    stage = STAGES[name].model_copy(update=small)
    partner = "rewards.0.partner" if "searcher" in name else "prompt_sampler.partner"
    data = "rewards.0.data" if "searcher" in name else "prompt_sampler.data"
    inputs = {"model": folders["policy"], partner: folders["policy"]}
    inputs |= {"prompts": folders["facts"], data: folders["corpus"]}
    where.mkdir(exist_ok=True)
    context = Context(inputs, where, where / "checkpoints", seed)
    return rl.prepare(stage, context), context


def digest(loop):
    return {name: compute_checksum(p.detach()) for name, p in loop.policy.model.named_parameters()}


def test_a_paused_policy_and_its_rows_stay_unchanged_while_the_other_trains(
    tiny_policy_folder, facts, corpus, tmp_path
):
    (tmp_path / "facts").mkdir()
    write_rows(tmp_path / "facts", "prompts", facts)
    folders = {"policy": tiny_policy_folder, "facts": tmp_path / "facts", "corpus": corpus}
    answerer, _ = loop_of("rounds-1-answerer", tmp_path / "b", 1, folders)
    for step in range(resume(answerer), 2):
        rl.run_iteration(answerer, step)
    save(answerer, 2)
    paused = digest(answerer)
    rows = {path.name: path.read_bytes() for path in (tmp_path / "b" / "checkpoints" / "trajectories").iterdir()}
    answerer.close()

    searcher, _ = loop_of("rounds-1-searcher", tmp_path / "a", 2, folders)
    for step in range(resume(searcher), 3):
        rl.run_iteration(searcher, step)
    assert searcher.sampled > 3 * 4
    searcher.close()

    kept = {path.name: path.read_bytes() for path in (tmp_path / "b" / "checkpoints" / "trajectories").iterdir()}
    assert kept == rows
    again, context = loop_of("rounds-1-answerer", tmp_path / "b", 1, folders)
    assert resume(again) == 2
    assert digest(again) == paused
    for step in (2, 3):
        rl.run_iteration(again, step)
    rl.publish(again, context)
    again.close()
    table = pq.read_table(next((tmp_path / "b" / "outputs" / "trajectories").glob("*.parquet"))).to_pylist()
    own = Counter(line["step"] for line in table if line["source"] == "policy")
    assert own == dict.fromkeys(range(4), 4)


def test_in_a_round_neither_policy_reads_what_the_other_makes_in_it(tmp_path):
    plan = compile_recipe(load_recipe(RECIPE, profile="tiny"), Layout(tmp_path))
    key = {step.name: step.key for step in plan.steps}

    def reads(name):
        return {one.get("key") for one in plan.step(name).identity["inputs"].values()}

    for number in (1, 2):
        searcher, answerer = f"rounds-{number}-searcher", f"rounds-{number}-answerer"
        assert key[answerer] not in reads(searcher)
        assert key[searcher] not in reads(answerer)
    assert {key["rounds-1-searcher"], key["rounds-1-answerer"]} <= reads("rounds-2-searcher")


# A worker that dies


class Mortal(RolloutService):
    """A service whose process ends after it has given some."""

    lives: list = []

    def __init__(self, folder, after):
        policy = load_policy(folder)
        super().__init__(Engine(policy), lambda receipt: None, policy)
        self.given, self.after = 0, after if not Mortal.lives else None
        Mortal.lives.append(self)
        self.start()

    def collect(self, wait_s=0.0):
        if self.after is not None and self.given >= self.after:
            raise SystemExit
        made = super().collect(wait_s)
        self.given += len(made)
        return made


def test_a_rollout_worker_dies_and_every_task_is_done_once(tiny_policy, tiny_policy_folder, facts):
    Mortal.lives = []
    actors = Threads({"rollout": 2})
    engine = Replicas(actors, actors.start("rollout", Mortal, tiny_policy_folder, 3), in_flight=6)
    requests = [
        Request(tiny_policy.tokenizer.encode(row["prompt"][0]["content"]), 2, number)
        for number, row in enumerate(facts[:20])
    ]
    sampling = Sampling(1.5, 6)
    engine.submit(list(enumerate(requests)), sampling)
    counts = Counter()
    texts = {}
    while made := engine.collect(until_some=True):
        for ticket, one in made:
            counts[ticket, one.sample] += 1
            texts[ticket, one.sample] = one.token_ids
    assert counts == dict.fromkeys(((i, k) for i in range(20) for k in range(2)), 1)
    assert len(Mortal.lives) == 3
    alone = Engine(tiny_policy).generate(requests, sampling)
    assert texts == {(i, k): alone[i][k].token_ids for i in range(20) for k in range(2)}
    for remote in engine.replicas:
        remote.remote.stop()
    for one in Mortal.lives:
        one.close()


# Data algorithms


def served(name, answering, facts, corpus, monkeypatch, steps=4):
    """Batches of a stage's searcher: whose samples, and which groups the filter keeps."""
    from learning.rewards import collective

    partner = answering(lambda prompt, number: next((r["answer"] for r in facts if f" {r['answer']};" in prompt), "x"))
    monkeypatch.setattr(collective, "guest", lambda folder: partner)
    parts = bind_sampling_slots(STAGES[name], {"rewards.0.partner": Path("b"), "rewards.0.data": corpus})
    history, states, taken_samples = History(), {}, []

    def write(prompt, number):
        """Right queries of every other sample, of all samples of a problem that begins with t."""
        relation, _, town = prompt.split("?")[0].rpartition("\n")[2].strip().partition(" of ")
        return f"{town} {relation}" if number % 2 or relation == "trade" else f"{town} none"

    for step in range(steps):
        sampler = answering(write, step=step, max_new_tokens=12)
        supplies = {"rows": facts, "num_groups": 8, "n": 8, "seed": 0, "step": step, "states": states, "metrics": {}}
        samples = collect_samples(parts, IterationContext(**supplies, sampler=sampler, history=history), {})
        batch = keep_groups(parts.filter_groups, samples, step, {}, {**supplies, "history": history})
        taken_samples.append((samples, batch))
    return taken_samples


def test_replay_is_an_entry_of_a_list(answering, facts, corpus, monkeypatch):
    with_it, without = STAGES["rounds-1-searcher"], STAGES["fresh"]
    differ = {name for name in type(with_it).model_fields if getattr(with_it, name) != getattr(without, name)}
    assert differ <= {"extra_samples", "model", "rewards", "seed"}
    assert (len(with_it.extra_samples), without.extra_samples) == (1, [])
    share = []
    for samples, _ in served("rounds-1-searcher", answering, facts, corpus, monkeypatch):
        counts = Counter(t.source for t in samples)
        share.append(counts["replay"] / sum(counts.values()))
    assert share == [0.0] + [pytest.approx(2 / 10)] * 3
    for samples, _ in served("fresh", answering, facts, corpus, monkeypatch):
        assert {t.source for t in samples} == {"policy"}


def test_the_filter_is_one_too(answering, facts, corpus, monkeypatch):
    (samples, batch), *_ = served("fresh", answering, facts, corpus, monkeypatch)
    rewards = {}
    for sample in samples:
        rewards.setdefault(sample.group, set()).add(sample.reward)
    varied = {group for group, values in rewards.items() if len(values) > 1}
    assert 0 < len(varied) < len(rewards)
    assert set(batch.paths["group"].tolist()) == varied
    assert set(batch.paths["reward"].tolist()) == {0.0, 1.0}


def test_a_stale_token_is_weighted_by_the_ratio_of_the_proximal_policy_to_the_one_that_sampled_it():
    inputs = {port.path: Path("p") for port in load_recipe(RECIPE, profile="tiny").ports("rounds-1-searcher")}
    check_decoupled_ratio(bind_algorithm(STAGES["rounds-1-searcher"], inputs))
