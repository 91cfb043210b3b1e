"""SSRL: the policy writes what a search would show, and that part has no weight; a real search can take its place.

Completions are dictated; rewards, loss weights and environment are those of the recipe. Not shown: the scaling law of
self-search.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion, encode_prompt, encode_text
from learning.environments.making import wrap_in_environment
from learning.lookup import bind, load_optional
from learning.rl.tag_spans import name_tokens
from learning.samples.engine_protocol import Generation, Request, Sampling
from learning.samples.sample import Sample
from learning.sampling.sampler import score
from learning.toy_tasks.atlas import atlas_facts, recalled
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "ssrl.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, UNMASKED, ENGINE = (STAGES[name] for name in ("trained", "unmasked", "engine"))
(ROW,) = bind(STAGES["facts"].problems[0])()[:1]
QUERY = recalled(ROW, np.random.default_rng(0)).partition("<search>")[2].partition("</search>")[0]
DOCUMENT = f"{QUERY} {ROW['answer']}"


def write(value, query=QUERY):
    return f"<search>{query}</search><information>{query} {value}</information><answer>{value}</answer>"


def make_samples(policy, texts, stage):
    """A group of completions with the rewards of a stage."""
    prompt = encode_prompt(policy.tokenizer, ROW["prompt"])
    samples = []
    for text in texts:
        ids = encode_completion(policy.tokenizer, [{"role": "assistant", "content": text}])
        samples.append(Sample(ROW, 0, "policy", prompt, ids, [-1.0] * len(ids), "stop", text, versions=[0] * len(ids)))
    rewards = [bind(use, f"rewards.{i}") for i, use in enumerate(stage.rewards)]
    score(rewards, [use.weight for use in stage.rewards], samples, {"step": 0})
    return samples


def make_batch(policy, stage, samples):
    """The batch that an iteration of the stage trains on: its columns, advantages and weights."""
    algorithm = bind_algorithm(stage, {})
    batch = with_dropped(forest(samples), mask_truncated=False)
    add_column = load_optional(stage, "tag_spans", algorithm.list_needed_names())
    if add_column is not None:
        batch = add_column(batch, samples, None, stage, policy.tokenizer)
    lp = batch.sampled("lp_behav")
    batch = batch.with_tokens(lp_ref=lp, lp_prox=lp)
    batch = with_advantages(algorithm, batch, 0)
    return algorithm, with_weights(algorithm, batch, 0, 200)


def are_inside(policy, samples):
    """Whether each sampled token is in an information segment, its tags included."""
    texts = [[decode(policy.tokenizer, [token]) for token in sample.completion_ids] for sample in samples]
    return torch.tensor([name == "information" for of in texts for name in name_tokens(of)])


TEXTS = [write(ROW["answer"]), write("wrong"), ROW["answer"], write(ROW["answer"]) + "!"]


def test_information_has_no_weight_although_the_policy_wrote_it(tiny_policy):
    samples = make_samples(tiny_policy, TEXTS, TRAINED)
    assert all(sample.own == [True] * len(sample.completion_ids) for sample in samples)
    inside_T = are_inside(tiny_policy, samples)
    segment = f"<information>{DOCUMENT}</information>"
    assert inside_T.sum() == len(encode_text(tiny_policy.tokenizer, segment)) * 2 + len(
        encode_text(tiny_policy.tokenizer, f"<information>{QUERY} wrong</information>")
    )
    _, masked = make_batch(tiny_policy, TRAINED, samples)
    assert bool((masked.sampled("w")[inside_T] == 0).all())
    assert bool((masked.sampled("w")[~inside_T] > 0).all())
    _, plain = make_batch(tiny_policy, UNMASKED, samples)
    assert bool((plain.sampled("w") > 0).all())


def test_the_gradient_at_information_is_zero_with_the_mask_and_not_without(tiny_policy):
    samples = make_samples(tiny_policy, TEXTS, TRAINED)
    inside_T = are_inside(tiny_policy, samples)
    for stage, zero in ((TRAINED, True), (UNMASKED, False)):
        algorithm, batch = make_batch(tiny_policy, stage, samples)
        _, columns = micro_loss(algorithm, tiny_policy.model, batch, step=0, temperature=1.0)
        grad_T = columns["policy_grad_T"]
        assert bool((grad_T[inside_T] == 0).all()) is zero
        assert bool((grad_T[~inside_T] != 0).any())


def test_the_reward_is_the_answer_and_a_tenth_of_the_form(tiny_policy):
    samples = make_samples(tiny_policy, TEXTS, TRAINED)
    assert [sample.reward for sample in samples] == pytest.approx([1.0, 0.1, 0.0, 0.9])
    assert [one.reward for one in make_samples(tiny_policy, TEXTS, ENGINE)] == [1.0, 0.0, 0.0, 1.0]


class Dictated:
    """An engine that says texts one after the other, cut behind a stop sequence; counts its turns."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.contexts = tokenizer, list(texts), []

    def generate(self, requests, sampling):
        (request,) = requests
        self.contexts.append(decode(self.tokenizer, [*request.prompt_ids, *request.begun]))
        ids = encode_completion(self.tokenizer, [{"role": "assistant", "content": self.texts.pop(0)}])
        stopped = [p for p in range(1, len(ids)) for stop in sampling.stop if tuple(ids[p - len(stop) : p]) == stop]
        ids = ids[: stopped[0]] if stopped else ids
        return [[Generation(ids, [-1.0] * len(ids), "stop")]]

    def sync(self, version):
        pass


def play(policy, stage, texts):
    """An episode in the environment of a stage, and the contexts of its turns."""
    engine = Dictated(policy.tokenizer, texts)
    episodes = wrap_in_environment(engine, stage.env, policy.tokenizer, {}, 1000)
    prompt = encode_prompt(policy.tokenizer, ROW["prompt"])
    ((made,),) = episodes.generate([Request(prompt, 1, 0, row=ROW)], Sampling(1.0, 400))
    return made, engine.contexts


@pytest.mark.parametrize("name", ["report_search", "engine"])
def test_the_real_document_takes_the_place_of_what_the_policy_would_have_written(tiny_policy, name):
    made, contexts = play(tiny_policy, STAGES[name], [write("wrong"), f"<answer>{ROW['answer']}</answer>"])
    assert DOCUMENT in json.loads(ROW["metadata"])["documents"]
    halted, shown = f"<search>{QUERY}</search>", f"<information>{DOCUMENT}</information>"
    assert contexts[1].endswith(halted + shown)
    assert [(turn.sampled, turn.observed) for turn in made.turns] == [
        (len(encode_text(tiny_policy.tokenizer, halted)), len(encode_text(tiny_policy.tokenizer, shown))),
        (len(encode_text(tiny_policy.tokenizer, f"<answer>{ROW['answer']}</answer>")) + 1, 0),
    ]
    whole = decode(tiny_policy.tokenizer, made.token_ids)
    assert whole == f"{halted}{shown}<answer>{ROW['answer']}</answer>"
    assert made.finish == "stop"


def test_training_has_no_environment_and_the_comparators_differ_in_one_thing(tiny_policy):
    assert TRAINED.env is None
    assert STAGES["report"].env is None
    dumped = {name: STAGES[name].model_dump(mode="json") for name in ("trained", "unmasked", "engine")}
    ours = dumped["trained"]
    assert {key for key in ours if ours[key] != dumped["unmasked"][key]} == {"token_mask"}
    assert {key for key in ours if ours[key] != dumped["engine"][key]} == {"token_mask", "env", "rewards"}
    report, search = STAGES["report"], STAGES["report_search"]
    assert report.models == search.models
    assert ENGINE.env == search.env
    assert [use.options.get("k") for use in report.metrics] == [None, 4, 8]
    assert "tag_spans" in TRAINED.optional_code(["tag_T"])
    assert "tag_spans" not in UNMASKED.optional_code(bind_algorithm(UNMASKED, {}).list_needed_names())


def test_lessons_have_the_form_that_is_rewarded_and_halves_do_not_overlap(tmp_path):
    from learning.data.rows import write_rows

    facts = bind(STAGES["facts"].problems[0])()
    assert facts == atlas_facts(towns=13)
    assert len(facts) == 52
    (tmp_path / "facts").mkdir()
    write_rows(tmp_path / "facts", "prompts", facts)
    halves = [
        bind(STAGES[name].problems[0], "problems.0", {"problems.0.data": tmp_path / "facts"})()
        for name in ("questions", "others")
    ]
    ids = [{row["id"] for row in half} for half in halves]
    assert [len(half) for half in ids] == [26, 26]
    assert not ids[0] & ids[1]
    rng = np.random.default_rng(0)
    texts = [recalled(row, rng) for row in facts]
    (_, form) = TRAINED.rewards
    assert bind(form).ask(0, {"rows": facts, "completions": texts}) == [1.0] * 52
    wrong = [recalled(row, rng, error_rate=1.0) for row in facts]
    right = bind(TRAINED.rewards[0])
    assert right.ask(0, {"rows": facts, "completions": texts}) == [1.0] * 52
    assert right.ask(0, {"rows": facts, "completions": wrong}) == [0.0] * 52
