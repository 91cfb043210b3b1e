"""Sharing is Caring: peers' completions arrive as text; only the receiver tokenises, weights and rewards them.

Not shown: a gain of 94 % with thousands of nodes; an asynchronous network: in rounds of stages all nodes go at the pace
of the slowest. Each reads what its peers sampled in the round before.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from flows.planning.compile import compile_recipe
from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.collection.extra_samples import sharing
from learning.data.chat import encode_completion
from learning.models.packed import pack, packed_logprobs
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import bind_sampling_slots, keep_groups
from learning.samples.sample import History, Sample, by_group
from learning.sampling.iteration_context import IterationContext
from learning.sampling.trajectories import Trajectories
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "sapo-swarm.yaml"
WORDS = [f"{a}{b}" for a in "abcdef" for b in "ghij"]
ROWS = [
    {"id": w, "prompt": [{"role": "user", "content": w}], "answer": w[::-1], "family": "words", "metadata": "{}"}
    for w in WORDS
]


@cache
def stage(name):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def peer(folder, words, right=3, n=8, **how):
    """The artifact of a node whose every number is nonsense here: its tokens, log-probabilities and scores."""
    kept = Trajectories(folder / "parts", 1.0, 0)
    for step, word in enumerate(words):
        row = next(row for row in ROWS if row["id"] == word)
        texts = [word[::-1] if i < right else "zz" for i in range(n)]
        samples = [
            replace(
                Sample(row, 0, "policy", [9], [999, 998], [float("nan")] * 2, "stop", text, scores={"theirs": -5.0}),
                **how,
            )
            for text in texts
        ]
        for sample in samples:
            sample.reward = -5.0
        kept.add(step, samples, [77.0] * n)
    folder.mkdir(parents=True, exist_ok=True)
    kept.publish(folder, [])
    return folder


def iteration(answering, name, peers, write, seed=0):
    """What an iteration of the recipe's stage trains on: its own 16 groups of 8, and what `peers` have shared."""
    settings = stage(name)
    ports = {f"extra_samples.0.others.{i}": folder for i, folder in enumerate(peers)}
    parts = bind_sampling_slots(settings, ports)
    sampler = answering(write, max_new_tokens=8)
    supplies = {"rows": ROWS, "num_groups": 16, "n": 8, "seed": seed, "step": 0, "states": {}, "metrics": {}}
    return (
        collect_samples(parts, IterationContext(**supplies, sampler=sampler, history=History()), {}),
        sampler,
        supplies,
    )


def half(prompt, number):
    """Three right answers of eight."""
    return prompt_word(prompt)[::-1] if number < 3 else "xx"


def prompt_word(prompt):
    return next(word for word in WORDS if word in prompt)


def sources_of(samples):
    return [{t.source for t in members} for members in by_group(samples).values()]


def test_an_update_holds_four_own_and_four_foreign_groups(answering, tmp_path):
    peers = [peer(tmp_path / "b", WORDS[:6]), peer(tmp_path / "c", WORDS[6:12])]
    for seed in range(3):
        samples, _, _ = iteration(answering, "rounds-1-wide", peers, half, seed)
        groups = by_group(samples)
        assert sources_of(samples) == [{"policy"}] * 4 + [{"peer"}] * 4
        assert {len(members) for members in groups.values()} == {8}
        assert len({(m[0].source, m[0].row["id"]) for m in groups.values()}) == 8
    drawn = [
        {t.row["id"] for t in iteration(answering, "rounds-1-wide", peers, half, seed)[0] if t.source == "peer"}
        for seed in range(3)
    ]
    assert any(one != drawn[0] for one in drawn)
    few, _, _ = iteration(answering, "rounds-1-leaning", peers, half)
    assert [s.pop() for s in sources_of(few)] == ["policy"] * 2 + ["peer"] * 6


def test_rewards_tokens_and_log_probs_are_the_receivers(answering, tmp_path, tiny_policy):
    samples, sampler, _ = iteration(answering, "rounds-1-wide", [peer(tmp_path / "b", WORDS[:8])] * 2, half)
    foreign = [t for t in samples if t.source == "peer"]
    assert len(foreign) == 32
    for sample in foreign:
        assert sample.scores == {"answers.exact": float(sample.text == sample.row["answer"])}
        assert sample.reward == sample.scores["answers.exact"]
        ids = encode_completion(tiny_policy.tokenizer, [{"role": "assistant", "content": sample.text}])
        assert sample.completion_ids == ids
        assert sample.prompt_ids == sampler.encode(sample.row["prompt"])
    for sample in foreign[:4]:
        packed = pack([sample.prompt_ids, sample.completion_ids], [-1, 0])
        want = packed_logprobs(tiny_policy.model, packed)[0][len(sample.prompt_ids) :]
        torch.testing.assert_close(torch.tensor(sample.logprobs), want.detach(), atol=1e-5, rtol=0)
    batch = forest(foreign)
    assert not batch.sampled("external").any()  # a ratio to the receiver's own weights, which is 1 before the update
    assert bool((batch.sampled("lp_behav") < 0).all())


def test_of_a_peer_nothing_but_text_is_read(answering, tmp_path, monkeypatch):
    asked, real = [], sharing.scan_shards

    def scan(paths, wanted, what):
        asked.append(wanted.names)
        return real(paths, wanted, what)

    monkeypatch.setattr(sharing, "scan_shards", scan)
    iteration(answering, "rounds-1-wide", [peer(tmp_path / "b", WORDS[:8])] * 2, half)
    assert asked
    assert {c for columns in asked for c in columns} == {"step", "group", "prompt_id", "source", "completion", "status"}


@pytest.mark.parametrize("how", [{"finish": "length"}, {"source": "peer"}])
def test_what_a_peer_did_not_finish_or_not_sample_itself_is_not_shared(answering, tmp_path, how):
    peers = [peer(tmp_path / "b", WORDS[:8], **how), peer(tmp_path / "c", WORDS[8:10])]
    samples, _, _ = iteration(answering, "rounds-1-wide", peers, half)
    assert {t.row["id"] for t in samples if t.source == "peer"} == set(WORDS[8:10])


def test_a_group_that_earns_the_same_throughout_never_enters(answering, tmp_path):
    dull = peer(tmp_path / "b", WORDS[:10], right=8)
    mixed = peer(tmp_path / "c", WORDS[10:13])

    def write(prompt, number):
        return half(prompt, number) if prompt_word(prompt)[0] in "abc" else "xx"

    samples, _, _ = iteration(answering, "rounds-1-wide", [dull, mixed], write)
    foreign = {t.row["id"] for t in samples if t.source == "peer"}
    assert foreign == set(WORDS[10:13])  # three informative ones are all there are
    assert all(t.row["id"][0] in "abc" for t in samples if t.source == "policy")
    for members in by_group(samples).values():
        assert len({t.reward for t in members}) == 2


def trained(name, samples, supplies):
    """The batch with advantages and weights, by the algorithm of a stage."""
    how = bind_algorithm(stage(name), {})
    batch = with_dropped(keep_groups(None, samples, 0, {}, supplies), False)
    return with_weights(how, with_advantages(how, batch, 0), 0, 8)


def test_without_foreign_groups_it_is_grpo_of_a_single_node(answering, tmp_path):
    mixed = peer(tmp_path / "b", WORDS[:8])

    def write(prompt, number):
        return half(prompt, number) if have_signal(prompt_word(prompt)) else "xx"

    plain, _, _ = iteration(answering, "first_wide", [], write)
    differing = {m[0].row["id"] for m in by_group(plain).values() if len({t.reward for t in m}) > 1}
    assert len(differing) == 8
    alone, _, supplies = iteration(answering, "alone-1-wide", [mixed], write)
    assert sources_of(alone) == [{"policy"}] * 8
    single = [t for t in plain if t.row["id"] in differing]
    ours, theirs = trained("alone-1-wide", alone, supplies), trained("first_wide", single, supplies)
    for column in ("advantage", "w", "lp_behav"):
        assert torch.equal(ours.sampled(column), theirs.sampled(column))
    assert ours.segments == theirs.segments
    assert float(ours.sampled("advantage").abs().min()) > 0.5


def have_signal(word):
    return WORDS.index(word) in SIGNAL


SIGNAL: set[int] = set()


@pytest.fixture(autouse=True)
def _eight_of_the_sixteen_problems():
    """Which problems the plan of the first iteration asks for, eight of which the node can say something about."""
    from learning.collection.prompt_samplers import choose_prompts

    SIGNAL.clear()
    SIGNAL.update(sorted(choose_prompts(len(ROWS), 16, 0, 0))[:8])


def test_a_dead_node_delays_no_other(answering, tmp_path):
    dead = tmp_path / "dead"
    dead.mkdir()
    living = peer(tmp_path / "c", WORDS[:8])
    samples, _, _ = iteration(answering, "rounds-1-wide", [dead, living], half)
    assert [s.pop() for s in sources_of(samples)] == ["policy"] * 4 + ["peer"] * 4
    nobody, _, _ = iteration(answering, "rounds-1-wide", [dead, dead], half)
    assert sources_of(nobody) == [{"policy"}] * 4


def test_strangers_problems_are_refused(answering, tmp_path, monkeypatch):
    living = peer(tmp_path / "c", WORDS[:3])
    source = stage("rounds-1-wide")
    parts = bind_sampling_slots(source, {f"extra_samples.0.others.{i}": living for i in range(2)})
    supplies = {"rows": ROWS[4:], "num_groups": 2, "n": 2, "seed": 0, "step": 0, "states": {}, "metrics": {}}
    with pytest.raises(StepError, match="not among this stage's prompts"):
        collect_samples(parts, IterationContext(**supplies, sampler=answering(half), history=History()), {})


def test_a_drawn_group_is_what_a_killed_stage_draws_again(answering, tmp_path):
    peers = [peer(tmp_path / "b", WORDS[:12])] * 2
    one, two = (iteration(answering, "rounds-1-narrow", peers, half, 5)[0] for _ in range(2))
    assert json.dumps([t.to_json() for t in one]) == json.dumps([t.to_json() for t in two])


def test_every_node_reads_what_both_others_sampled_in_the_round_before(tmp_path):
    plan = compile_recipe(load_recipe(RECIPE, profile="tiny"), Layout(tmp_path))
    key = {step.name: step.key for step in plan.steps}
    nodes = ("wide", "narrow", "shallow")
    for node in nodes:
        others = [other for other in nodes if other != node]
        for number, before in ((1, "first_{}"), (2, "rounds-1-{}")):
            inputs = plan.step(f"rounds-{number}-{node}").identity["inputs"]
            assert inputs["model"]["key"] == key[before.format(node)]
            read = [inputs[f"extra_samples.0.others.{i}"] for i in range(2)]
            assert [one["key"] for one in read] == [key[before.format(other)] for other in others]
            assert {one["output"] for one in read} == {"trajectories"}
    # The node that leans on others reads the same peers of the same round, and no node reads it.
    for number in (1, 2):
        wide, leaning = (plan.step(f"rounds-{number}-{name}").identity["inputs"] for name in ("wide", "leaning"))
        assert all(leaning[port] == wide[port] for port in wide if port.startswith("extra_samples"))
        assert key[f"rounds-{number}-leaning"] not in {
            one.get("key") for name in nodes for one in plan.step(f"rounds-{number}-{name}").identity["inputs"].values()
        }
    assert plan.step("rounds-2-leaning").identity["inputs"]["model"]["key"] == key["rounds-1-leaning"]
