"""EHR Reasoning with Expert Attention: naming the measurements that the expert attends to is rewarded, the upper clip
follows the entropy there, and the expert is a part of the reward of the search.

Not shown: MIMIC data, clinical transfer. Unsure: how the upper clip grows with the entropy, and λ.
"""

import json
import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.data.chat import encode_prompt
from learning.lookup import bind
from learning.rewards import features
from learning.rewards.attention import select_top
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import Sample
from learning.sampling.sampler import score
from learning.teachers.guided_search import guided_search, search_tree, select_best
from learning.toy_tasks.records import NAMES, draw_record, find_deciding, fit_expert, records, scale_digits
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "eag-rl.yaml"


@pytest.fixture(scope="module")
def stages():
    return load_recipe(RECIPE, profile="tiny").stages


def row(name="q", answer="high", expert=(0.5, 0.3, 0.1, 0.1)):
    return {
        "id": name,
        "prompt": [{"role": "user", "content": "a:12 b:34 c:56 d:78 risk?"}],
        "answer": answer,
        "family": "records",
        "metadata": json.dumps({"expert": dict(zip("abcd", expert, strict=True))}),
    }


def sample(policy, of, text="#### high", group=0, entropies=None):
    ids = [*policy.tokenizer.encode(text), policy.tokenizer.eos_token_id]
    prompt = encode_prompt(policy.tokenizer, of["prompt"])
    filled = {"entropies": [0.0] * len(ids) if entropies is None else entropies}
    return Sample(of, group, "policy", prompt, ids, [-1.0] * len(ids), "stop", text, **filled)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 3, b 7 #### high", 1.0),
        ("b 7, a 3 #### low", 1.0),
        ("a 3, c 7 #### high", 1 / 3),
        ("c 3, d 7 #### high", 0.0),
        ("a 3, b 7, c 1 #### high", 2 / 3),
        ("a 3, a 7 #### high", 1 / 2),
        ("a b c d #### high", 1 / 2),
        ("#### a b", 0.0),
        ("ab 3, b2 #### high", 0.0),
        ("a 3, b 7", 1.0),
    ],
)
def test_the_reward_is_the_overlap_of_named_features_with_the_experts_top_two(text, expected):
    assert features.overlap([row()], [text], k=2) == [pytest.approx(expected)]


def test_rows_without_an_expert_cannot_be_scored(tiny_policy):
    bare = row() | {"metadata": None}
    assert features.overlap([bare, row()], ["a 1 #### x"] * 2) == [None, 0.5]
    assert features.entropy([bare], [sample(tiny_policy, bare, "a 1 #### x")], tiny_policy) == [None]


def test_the_entropy_is_that_at_the_tokens_that_name_features(tiny_policy):
    """A token for each character: a stands at 0, b at 5; the c after the marker is the answer's."""
    text = "a 3, b 7 #### c"
    entropies = [float(i + 1) for i in range(len(text) + 1)]
    made = sample(tiny_policy, row(), text, entropies=entropies)
    assert features.find_feature_tokens(tiny_policy, made, "abcd", "####") == [0, 5]
    assert features.entropy([row()], [made], tiny_policy) == [pytest.approx((1 + 6) / 2)]
    unnamed = sample(tiny_policy, row(), "#### high", entropies=[float(i) for i in range(10)])
    unrecorded = sample(tiny_policy, row(), text, entropies=[])
    assert features.entropy([row()] * 2, [unnamed, unrecorded], tiny_policy) == [4.5, None]
    longer = row() | {"metadata": json.dumps({"expert": {"pulse": 1.0}})}
    made = sample(tiny_policy, longer, "pulse 3", entropies=[float(i) for i in range(8)])
    assert features.entropy([longer], [made], tiny_policy) == [pytest.approx((0 + 1 + 2 + 3 + 4) / 5)]
    made.given = 2
    assert features.entropy([longer], [made], tiny_policy) == [pytest.approx((2 + 3 + 4) / 3)]


def scored(stage, policy, samples):
    parts = bind_sampling_slots(stage, {})
    score(parts.rewards, parts.weights, samples, {"step": 0, "seed": 0, "states": {}, "policy": policy}, parts.read)
    algorithm = bind_algorithm(stage, {})
    return algorithm, with_advantages(algorithm, with_dropped(forest(samples), False), 0)


def test_the_overlap_counts_half_beside_the_label_and_plain_is_grpo(stages, tiny_policy):
    def draw():
        texts = ["a 3, b 7 #### high", "c 3, d 7 #### high", "a 3, b 7 #### low"]
        return [sample(tiny_policy, row(), text) for text in texts]

    samples = draw()
    _, batch = scored(stages["trained"], tiny_policy, samples)
    rewards = np.array([1.5, 1.0, 0.5])
    assert [t.reward for t in samples] == pytest.approx(rewards)
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    of_path = [float(batch.sampled("advantage")[batch.path_T == p][0]) for p in range(3)]
    assert of_path == pytest.approx(expected, rel=1e-6)
    samples = draw()
    _, batch = scored(stages["plain"], tiny_policy, samples)
    assert [t.reward for t in samples] == [1.0, 1.0, 0.0]
    assert stages["plain"].policy_loss.use == "clipped"
    assert stages["plain"].policy_loss.options == {"epsilon": 0.2}


def test_the_upper_clip_grows_with_the_entropy_at_the_features(stages, tiny_policy):
    """ε is 0.2 + 0.2·min(H, 1): with H of 0, 0.5 and 3 the largest ratio with a gradient is 1.2, 1.3 and 1.4."""
    text = "a 3, b 7 #### high"

    def draw(entropy):
        values = [9.0] * (len(text) + 1)
        values[0] = values[5] = entropy
        return values

    made = [sample(tiny_policy, row(), text, entropies=draw(h)) for h in (0.0, 0.5, 3.0)]
    made += [sample(tiny_policy, row(), "#### high", entropies=[0.5] * 10)]  # no feature: the mean of all tokens
    algorithm, batch = scored(stages["trained"], tiny_policy, made)
    for ratio in (0.5, 0.79, 0.9, 1.1, 1.25, 1.35, 1.5):
        for advantage in (1.0, -1.0):
            log_ratio_T = torch.full((len(batch.sampled_T),), math.log(ratio), dtype=torch.float64).requires_grad_()
            columns = view_columns(batch, {"lp": batch.sampled("lp_behav")})
            columns["log_ratio_T"], columns["advantage_T"] = log_ratio_T, torch.full_like(log_ratio_T, advantage)
            loss_T = algorithm.policy_loss.ask(0, columns)
            (slope_T,) = torch.autograd.grad(loss_T.sum(), log_ratio_T)
            for path, high in enumerate((1.2, 1.3, 1.4, 1.3)):
                expected = -min(ratio * advantage, min(max(ratio, 0.8), high) * advantage)
                assert loss_T[batch.path_T == path].tolist() == pytest.approx(
                    [expected] * int((batch.path_T == path).sum())
                )
                cut = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < 0.8)
                assert bool((slope_T[batch.path_T == path] == 0).all()) == cut
    assert algorithm.needs("entropy_behav_T")  # so that the engine records entropies


def test_a_completion_that_names_no_feature_is_trained_on(stages, tiny_policy):
    made = [sample(tiny_policy, row(), "#### high"), sample(tiny_policy, row(), "a 3, b 7 #### high")]
    scored(stages["trained"], tiny_policy, made)
    assert [t.reward for t in made] == [1.0, 1.5]


def test_the_clip_names_the_reward_that_it_lacks(stages, tiny_policy):
    algorithm, batch = scored(stages["trained"], tiny_policy, [sample(tiny_policy, row())])
    del batch.paths["score:features.entropy"]
    columns = view_columns(batch, {"lp": batch.sampled("lp_behav")})
    columns["log_ratio_T"] = torch.zeros(len(batch.sampled_T), dtype=torch.float64)
    with pytest.raises(
        StepError, match=r"no reward 'features\.entropy'; the stage has: answers\.exact, features\.overlap"
    ):
        algorithm.policy_loss.ask(0, columns)


def test_several_updates_per_batch_let_the_clip_act(stages):
    assert {stages[name].num_iterations for name in ("trained", "plain")} == {2}
    assert {tuple(stages[name].loss_terms) for name in ("trained", "plain")} == {()}


def test_the_expert_finds_what_decides():
    rng = np.random.default_rng(5)
    for world in (0, 1):
        made = [draw_record(rng, world) for _ in range(200)]
        x, y = scale_digits(np.stack([t for t, _ in made])), np.array([label for _, label in made])
        expert = fit_expert(world)
        assert np.mean((expert.probability(x) > 0.5) == y) > 0.97
        assert all(set(np.argsort(-a)[:2].tolist()) == set(find_deciding(world)) for a in expert.attention(x))
        np.testing.assert_allclose(expert.attention(x).sum(1), 1.0, atol=1e-12)
    first = records(size=4, seed=1, split="train")[0]
    record = json.loads(first["metadata"])
    assert select_top(record["expert"], 2) == {NAMES[f] for f in find_deciding(0)}
    assert all(text in first["prompt"][0]["content"] for text in record["spans"].values())


def count_by_uct(rewards, simulations, exploration):
    """Visits of the children of a root by UCT, written down independently; children are complete paths."""
    visits, totals = [0] * len(rewards), [0.0] * len(rewards)
    for total in range(1, simulations):  # the first simulation is the root's own
        bounds = [
            t / n + exploration * math.sqrt(math.log(total) / n) if n else math.inf
            for t, n in zip(totals, visits, strict=True)
        ]
        chosen = bounds.index(max(bounds))
        visits[chosen] += 1
        totals[chosen] += rewards[chosen]
    return visits


@pytest.mark.parametrize("exploration", [0.0, 0.5, 1.0])
def test_visits_are_those_of_uct(exploration):
    rewards = {"a": 0.2, "b": 0.9, "c": 0.6}
    tree, _ = search_tree(
        lambda path: [] if path else list(rewards),
        lambda path: rewards[path[0]],
        np.random.default_rng(0),
        simulations=120,
        exploration=exploration,
    )
    visits = [tree.children[name].visits for name in rewards]
    assert visits == count_by_uct(list(rewards.values()), 120, exploration)
    assert tree.visits == 120
    assert tree.total == pytest.approx(sum(c.total for c in tree.children.values()), abs=1.0)


def test_the_paths_of_the_highest_reward_are_kept():
    rng = np.random.default_rng(3)
    worth = {path: float(rng.random()) for path in permutations("abcd", 2)}
    _, complete = search_tree(
        lambda path: [name for name in "abcd" if name not in path] if len(path) < 2 else [],
        worth.get,
        np.random.default_rng(0),
        simulations=400,
        exploration=1.0,
    )
    assert complete == worth
    assert select_best(complete, 3) == sorted(worth, key=worth.get, reverse=True)[:3]


def test_the_teacher_writes_one_of_the_best_paths_by_the_papers_reward(stages):
    """The reward, by an independent formula over all paths: 0.67·σ(4·mean support) + 0.33·|C ∩ E| / |C ∪ E|."""
    teacher = bind(stages["searched"].teacher, "teacher")
    assert teacher.options["simulations"] == 64
    rows, hits = records(size=40, seed=9, split="train"), 0
    for i, record in enumerate(rows):
        maps = json.loads(record["metadata"])
        best = select_top(maps["expert"], 2)
        rewards = {}
        for path in permutations(NAMES, 2):
            mean = sum(maps["support"][name] for name in path) / 2
            overlap = len(best & set(path)) / len(best | set(path))
            rewards[path] = 0.67 / (1 + math.exp(-4 * mean)) + 0.33 * overlap
        ranked = sorted(set(np.round(list(rewards.values()), 9)), reverse=True)
        text = guided_search(record, np.random.default_rng(i), **{**teacher.options, "simulations": 600})
        asked = tuple(part.split()[0] for part in text.partition(" ####")[0].split(", "))
        assert text.endswith(f"#### {record['answer']}")
        # Both orders of a pair have the same reward, and two paths are kept.
        hits += round(rewards[asked], 9) == ranked[0]
    assert hits >= 38


def test_the_teacher_of_the_recipe_asks_for_what_decides(stages):
    teacher = bind(stages["searched"].teacher, "teacher")
    rows = records(size=40, seed=9, split="train")
    wanted = {NAMES[f] for f in find_deciding(0)}

    def count_hits(**options):
        texts = [
            guided_search(r, np.random.default_rng(i), **{**teacher.options, **options}) for i, r in enumerate(rows)
        ]
        asked = [[part.split()[0] for part in t.partition(" ####")[0].split(", ")] for t in texts]
        return np.mean([len(wanted & set(a)) / 2 for a in asked])

    assert count_hits() > 0.8
    assert count_hits(guidance=0.0) < 0.6


def test_both_orders_of_the_best_pair_are_distilled(stages):
    teacher = bind(stages["searched"].teacher, "teacher")
    (record,) = records(size=1, seed=9, split="train")
    texts = {guided_search(record, np.random.default_rng(i), **teacher.options) for i in range(12)}
    assert len(texts) > 1


def test_the_search_takes_findings_of_any_domain():
    """Faults of a car: the expert looks at fuse and pump; without it the search asks for what supports the answer."""
    findings = {"fuse": "blown", "pump": "silent", "tyres": "worn", "paint": "dull"}
    expert = {"fuse": 0.5, "pump": 0.4, "tyres": 0.05, "paint": 0.05}
    support = {"fuse": 0.9, "pump": 0.2, "tyres": -0.5, "paint": 0.0}
    maps = {"findings": findings, "expert": expert, "support": support}
    car = {"id": "car", "answer": "no fuel", "metadata": json.dumps(maps)}
    text = guided_search(car, np.random.default_rng(0), questions=2, marker="so")
    assert text == "fuse blown, pump silent so no fuel"
    against = maps | {"support": support | {"fuse": -0.9, "tyres": 0.9}}
    text = guided_search(car | {"metadata": json.dumps(against)}, np.random.default_rng(0), questions=1, guidance=0.0)
    assert text == "tyres worn #### no fuel"
    for wrong in (None, json.dumps(maps | {"support": {"fuse": 1.0}}), json.dumps({"findings": findings})):
        with pytest.raises(StepError, match="row car: its metadata needs `findings`, `expert` and `support`"):
            guided_search(car | {"metadata": wrong}, np.random.default_rng(0))
    with pytest.raises(StepError, match="has no answer"):
        guided_search(car | {"answer": None}, np.random.default_rng(0))
    strange = maps | {"support": support | {"fuse": "much"}}
    with pytest.raises(StepError, match="are numbers"):
        guided_search(car | {"metadata": json.dumps(strange)}, np.random.default_rng(0))
