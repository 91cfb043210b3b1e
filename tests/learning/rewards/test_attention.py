"""The reward for attention to an expert's features reads the model's own attention."""

import json

import numpy as np
import pytest
import torch

from learning.data.chat import encode_prompt
from learning.rewards import attention
from learning.samples.sample import Sample

SPANS = {"a": "a:12", "b": "b:34", "c": "c:56", "d": "d:78"}


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
