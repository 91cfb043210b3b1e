"""EHR Reasoning with Expert Attention: attention to the measurements that the expert attends to is rewarded, and its
prior guides the search.

Not shown: MIMIC data, clinical transfer. Unsure: the measure of alignment; both the share of attention and the overlap
of the top features are proven.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.data.chat import encode_prompt
from learning.lookup import bind
from learning.rewards import attention
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import Sample
from learning.sampling.sampler import score
from learning.teachers.guided_search import find_most_visited, guided_search, mix_priors, search_tree
from learning.toy_tasks.records import NAMES, draw_record, find_deciding, fit_expert, records, scale_digits
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "eag-rl.yaml"
SPANS = {"a": "a:12", "b": "b:34", "c": "c:56", "d": "d:78"}


@pytest.fixture(scope="module")
def stages():
    return load_recipe(RECIPE, profile="tiny").stages


def row(expert, name="q", answer="high"):
    metadata = {"spans": SPANS, "expert": dict(zip("abcd", expert, strict=True))}
    text = f"{' '.join(SPANS.values())} risk?"
    return {
        "id": name,
        "prompt": [{"role": "user", "content": text}],
        "answer": answer,
        "family": "records",
        "metadata": json.dumps(metadata),
    }


def sample(policy, of, text="#### high", group=0):
    ids = [*policy.tokenizer.encode(text), policy.tokenizer.eos_token_id]
    prompt = encode_prompt(policy.tokenizer, of["prompt"])
    return Sample(of, group, "policy", prompt, ids, [-1.0] * len(ids), "stop", text)


def test_overlap_of_the_top_features():
    assert attention.compute_jaccard({"a", "b", "c"}, {"a", "b", "d"}) == 0.5
    assert attention.select_top({"a": 0.2, "b": 0.5, "c": 0.2, "d": 0.1}, 2) == {"a", "b"}


def test_looking_where_the_expert_looks_earns_more(monkeypatch, tiny_policy):
    toward, away = {"a": 0.4, "b": 0.4, "c": 0.1, "d": 0.1}, {"a": 0.1, "b": 0.1, "c": 0.4, "d": 0.4}
    monkeypatch.setattr(attention, "compute_feature_masses", lambda policy, samples, places: [toward, away])
    rows = [row((0.5, 0.3, 0.1, 0.1))] * 2
    samples = [sample(tiny_policy, rows[0])] * 2
    assert attention.alignment(rows, samples, tiny_policy, k=2) == [pytest.approx(0.8), pytest.approx(0.2)]
    assert attention.alignment(rows, samples, tiny_policy, k=2, measure="jaccard") == [1.0, 0.0]


def direct_masses(policy, made):
    """Attention computed by hand for one sequence: no batch, loops over features and tokens."""
    ids = torch.tensor([[*made.prompt_ids, *made.completion_ids]])
    policy.model.config._attn_implementation = "eager"
    with torch.no_grad():
        layers = policy.model(input_ids=ids, output_attentions=True).attentions
    policy.model.config._attn_implementation = "sdpa"
    text = "<user>" + made.row["prompt"][0]["content"]
    mass = {}
    for name, shown in SPANS.items():
        first = text.index(shown) - len("<user>") + 1
        places = range(first, first + len(shown))
        asking = range(len(made.prompt_ids) - 1, ids.shape[1] - 1)
        mass[name] = np.mean(
            [sum(float(layer[0, h, q, p]) for p in places) for layer in layers for h in range(4) for q in asking]
        )
    return {name: value / sum(mass.values()) for name, value in mass.items()}


def test_attention_is_read_over_the_tokens_of_each_feature(tiny_policy):
    of = row((0.5, 0.3, 0.1, 0.1))
    samples = [sample(tiny_policy, of), sample(tiny_policy, of, "a 3, b 7 #### low")]
    places = [attention.find_feature_places(tiny_policy, t, of, SPANS) for t in samples]
    assert [tiny_policy.tokenizer.decode([samples[0].prompt_ids[p] for p in places[0][n]]) for n in "abcd"] == [
        "a:12",
        "b:34",
        "c:56",
        "d:78",
    ]
    differentiable = []
    hook = tiny_policy.model.register_forward_hook(lambda _, __, out: differentiable.append(out.logits.requires_grad))
    got = attention.compute_feature_masses(tiny_policy, samples, places)
    hook.remove()
    assert differentiable == [False]
    for masses, made in zip(got, samples, strict=True):
        assert masses == pytest.approx(direct_masses(tiny_policy, made), abs=1e-6)
    assert tiny_policy.model.config._attn_implementation == "sdpa"
    one = attention.alignment([of], samples[:1], tiny_policy)
    assert one == [pytest.approx(got[0]["a"] + got[0]["b"], abs=1e-6)]


def test_forwards_may_be_cut_without_a_difference(tiny_policy, monkeypatch):
    of = row((0.5, 0.3, 0.1, 0.1))
    samples = [sample(tiny_policy, of, text) for text in ("x", "#### high", "a 3, b 7 #### low")]
    whole = attention.alignment([of] * 3, samples, tiny_policy)
    monkeypatch.setattr(attention, "SCORES", 1)
    assert attention.alignment([of] * 3, samples, tiny_policy) == pytest.approx(whole, abs=1e-6)


def test_rows_without_an_expert_cannot_be_scored(tiny_policy):
    of = row((0.5, 0.3, 0.1, 0.1))
    bare = {**of, "metadata": None}
    strange = {**of, "metadata": json.dumps({"spans": {"a": "z:99"}, "expert": {"a": 1.0}})}
    other = sample(tiny_policy, {**of, "prompt": [{"role": "user", "content": "else"}]})
    samples = [sample(tiny_policy, of)] * 3 + [other]
    scores = attention.alignment([of, bare, strange, of], samples, tiny_policy)
    assert scores[1:] == [None, None, None]
    assert 0 < scores[0] < 1


def advantages(stage, policy, rewards=None):
    of = [row((0.5, 0.3, 0.1, 0.1), "q", answer) for answer in ("high", "high", "low")]
    samples = [sample(policy, r, text) for r, text in zip(of, ("#### high", "a 3 #### high", "#### high"), strict=True)]
    parts = bind_sampling_slots(stage, {})
    supplies = {"step": 0, "seed": 0, "states": {}, "policy": policy}
    score(parts.rewards[:rewards], parts.weights[:rewards], samples, supplies)
    batch = with_dropped(forest(samples), False)
    return with_advantages(bind_algorithm(stage, {}), batch, 0).sampled("advantage"), samples


def test_alignment_distinguishes_equal_predictions_and_weight_0_is_plain_grpo(stages, tiny_policy):
    guided, samples = advantages(stages["trained"], tiny_policy)
    assert samples[0].scores["answers.exact"] == samples[1].scores["answers.exact"] == 1.0
    assert samples[0].reward != samples[1].reward
    for t in samples:
        assert t.reward == pytest.approx(t.scores["answers.exact"] + 0.5 * t.scores["attention.alignment"])
    plain, _ = advantages(stages["plain"], tiny_policy)
    alone, _ = advantages(stages["plain"], tiny_policy, rewards=1)
    assert torch.equal(plain, alone)
    assert not torch.equal(plain, guided)


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
    assert attention.select_top(record["expert"], 2) == {NAMES[f] for f in find_deciding(0)}
    assert all(text in first["prompt"][0]["content"] for text in record["spans"].values())


def test_of_equal_leaves_the_expert_supported_one_is_visited_more():
    expert = {"a": 0.9, "b": 0.1}

    def visits(guidance):
        leaves = mix_priors(expert, ["a", "b"], guidance)
        tree = search_tree(lambda path: {} if path else leaves, lambda path: 0.5, simulations=101, exploration=1.0)
        return [tree.children[name].visits for name in "ab"]

    guided, alone = visits(0.75), visits(0.0)
    assert sum(guided) == sum(alone) == 100
    # With equal values visits settle where prior / (1 + visits) is equal: shares are the priors, 0.8 and 0.2.
    assert guided[0] / 100 == pytest.approx(0.8, abs=0.01)
    assert alone == [50, 50]
    # A better value outweighs the prior.
    worth = {(): 0.5, ("a",): 0.1, ("b",): 0.9}
    tree = search_tree(
        lambda p: {} if p else mix_priors(expert, ["a", "b"], 0.75), worth.get, simulations=200, exploration=1.0
    )
    assert tree.children["b"].visits > tree.children["a"].visits
    assert find_most_visited(tree) == ("b",)
    assert tree.value == pytest.approx(sum(c.total for c in tree.children.values()) / 200 + 0.5 / 200)


def test_the_teacher_of_the_recipe_asks_for_what_decides(stages):
    teacher = bind(stages["searched"].teacher, "teacher")
    rows = records(size=40, seed=9, split="train")
    wanted = {NAMES[f] for f in find_deciding(0)}

    def hits(**options):
        texts = [
            guided_search(r, np.random.default_rng(i), **{**teacher.options, **options}) for i, r in enumerate(rows)
        ]
        asked = [[part.split()[0] for part in t.partition(" ####")[0].split(", ")] for t in texts]
        assert all(t.endswith(f"#### {r['answer']}") for t, r in zip(texts, rows, strict=True))
        return np.mean([len(wanted & set(a)) / 2 for a in asked])

    assert hits() > 0.8
    assert hits(guidance=0.0) < 0.6


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
