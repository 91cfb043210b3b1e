import json
from collections import Counter
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from learning.batch.batch_layout import forest
from learning.collection.extra_samples.extra_samples import teachers
from learning.data.chat import decode, encode_completion, encode_reply
from learning.data.rows import write_rows
from learning.lookup import bind
from learning.models.packed import pack, packed_logprobs
from learning.rewards.environment import earned
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample, by_group
from learning.sampling.trajectories import EPISODES, Trajectories
from schemas.errors import StepError
from schemas.use import ExtraSamplesUse


def row(name, answer=None):
    messages = [{"role": "user", "content": name}]
    return {"id": name, "prompt": messages, "answer": answer or name, "family": "f", "metadata": "{}"}


def sample(name, group, score, *, source="policy", text="x", step=0, **more):
    filled = {"versions": [step], "scores": {"exact": score}, "reward": score, **more}
    return Sample(row(name), group, source, [1, 2], [7], [-0.5], "stop", text, **filled)


def added(use, samples, states, *, step=0, sampler=None, inputs=None, seed=0):
    bound = bind(ExtraSamplesUse.model_validate(use), "extra_samples.0", inputs)
    return bound.ask(
        step, {"samples": samples, "step": step, "sampler": sampler, "states": states, "seed": seed, "n": 2}
    )


def chat(folder, **texts):
    rows = [
        row(name) | {"completion": [{"role": "assistant", "content": text}]}
        for name, several in texts.items()
        for text in several
    ]
    write_rows(folder, "chat", rows)
    return {"extra_samples.0.data": folder}


def test_replay_gives_back_the_last_policies_first_in_first_out(answering):
    states = {}
    for step in range(6):
        sampler = answering(lambda *_: "", step=step)
        sampler.groups = 2
        fresh = [sample("ab"[g], g, float(i), step=step) for g in range(2) for i in range(2)]
        got = added({"use": "replay", "policies": 3}, fresh, states, step=step, sampler=sampler)
        old = got[4:]
        assert got[:4] == fresh
        assert Counter(t.versions[0] for t in old) == dict.fromkeys(range(max(0, step - 3), step), 4)
        assert {t.source for t in old} <= {"replay"}
        # Stored groups stay groups, apart from the new ones, and keep what they were sampled with.
        groups = by_group(got)
        assert len(groups) == 2 + 2 * min(step, 3)
        assert all({t.row["id"] for t in g} in ({"a"}, {"b"}) and len(g) == 2 for g in groups.values())
        assert all(t.logprobs == [-0.5] and t.reward in (0.0, 1.0) for t in old)
        states = json.loads(json.dumps(states))


def test_replay_draws_the_given_number_of_groups_and_stores_only_sampled_ones(answering):
    use = {"use": "replay", "groups": 3}
    states = {}
    first = [sample("a", g, 1.0) for g in range(5)]
    others = [
        sample("a", 5, 1.0, source="greedy"),
        sample("a", 6, None, reward=None),
        sample("a", 7, 1.0),
    ]
    expert = Sample(row("a"), 0, "expert", [1], [2], None, "stop", "", scores={"exact": 1.0}, reward=1.0)
    for one in others[2:]:
        one.finish = "suspended"
    assert added(use, [*first, *others, expert], states, sampler=answering(lambda *_: "")) == [*first, *others, expert]
    assert len(states["extra_samples.0"]["groups"]) == 5
    got = added(use, first, states, step=1, sampler=answering(lambda *_: "", step=1))
    assert [t.source for t in got] == ["policy"] * 5 + ["replay"] * 3


def test_a_stored_success_joins_a_group_that_failed_throughout_and_no_other():
    states = {}
    before = [sample("a", 0, 1.0, text="solved"), sample("a", 0, 0.0), sample("b", 1, 0.0)]
    assert added("successes", before, states) == before
    now = [sample("a", 0, 0.0, step=1) for _ in range(4)] + [
        sample("a", 1, 1.0),
        sample("a", 1, 0.0),
        sample("b", 2, 0.0),
    ]
    got = by_group(added("successes", now, json.loads(json.dumps(states)), step=1))
    assert [t.source for t in got[0]] == ["policy"] * 3 + ["replay"]
    assert (got[0][-1].text, got[0][-1].group, got[0][-1].versions) == ("solved", 0, [0])
    assert got[1] == now[4:6]
    assert got[2] == now[6:]


def test_successes_may_be_added_to_every_group():
    states = {}
    added("successes", [sample("a", 0, 1.0, text=str(i)) for i in range(5)], states)
    use = {"use": "successes", "when": "always", "per_group": 2, "replaced": False, "keep": 3}
    got = added(use, [sample("a", 0, 1.0), sample("a", 0, 0.0)], states)
    assert [t.source for t in got] == ["policy"] * 2 + ["replay"] * 2
    assert len({t.text for t in got[2:]}) == 2
    assert len(states["extra_samples.0"]["successes"]["a"]) == 3


def test_an_expert_takes_the_place_of_one_completion(tmp_path, answering):
    inputs = chat(tmp_path, a=["known"], b=["one", "two", "three"])
    samples = [sample("ab"[g], g, float(i)) for g in range(2) for i in range(3)] + [sample("c", 2, 0.0)]
    sampler = answering(lambda *_: "")
    got = by_group(added({"use": "expert", "data": "d", "per_group": 2}, samples, {}, sampler=sampler, inputs=inputs))
    assert [[t.source for t in members] for members in got.values()] == [
        ["policy", "policy", "expert"],
        ["policy", "expert", "expert"],
        ["policy"],
    ]
    assert got[0][-1].text == "known"
    assert len({t.text for t in got[1][1:]}) == 2
    assert got[0][-1].logprobs is None
    batch = forest(got[0])
    assert batch.sampled("external").tolist() == [False, False] + [True] * len("known.")
    failed_only = {"use": "expert", "data": "d", "when": "failed"}
    mixed = [sample("a", 0, 0.0), sample("a", 0, 1.0), sample("b", 1, 0.0), sample("b", 1, 0.0)]
    got = added(failed_only, mixed, {}, sampler=sampler, inputs=inputs)
    assert [(t.group, t.source) for t in got] == [(0, "policy"), (0, "policy"), (1, "policy"), (1, "expert")]


def test_an_expert_of_other_problems_or_beyond_the_model_is_refused(tmp_path, answering):
    sampler = answering(lambda *_: "")
    inputs = chat(tmp_path, z=["known"], a=["y" * 200])
    with pytest.raises(StepError, match="has no completion for any problem of this iteration"):
        added({"use": "expert", "data": "d"}, [sample("b", 0, 0.0)], {}, sampler=sampler, inputs=inputs)
    with pytest.raises(StepError, match="problem a and its completion have 205 tokens"):
        added({"use": "expert", "data": "d"}, [sample("a", 0, 0.0)], {}, sampler=sampler, inputs=inputs)


def likelihood(policy, sampler, name, lead, answer):
    """Mean log-probability of an answer after a lead, from a forward pass of its own."""
    encode = policy.tokenizer.encode
    ids = [*sampler.encode(row(name)["prompt"]), *encode(lead), *encode(answer)]
    with torch.no_grad():
        lp_M, _ = packed_logprobs(policy.model, pack([ids], [-1]))
    return float(lp_M[-len(answer) :].double().mean())


def test_teachers_are_picked_by_how_likely_they_make_the_answer(tmp_path, answering, tiny_policy):
    leads = ["1+1 #### ", "so, two: #### ", "#### ", "hm #### "]
    folders = []
    for i, lead in enumerate(leads):
        folders.append(tmp_path / str(i))
        folders[-1].mkdir()
        chat(folders[-1], q=[f"{lead}42", f"{lead}43"])
    sampler = answering(lambda *_: "")
    samples = [sample("q", 0, 0.0) for _ in range(8)] + [sample("q", 1, float(i == 3)) for i in range(8)]
    for one in samples:
        one.row = row("q", "42")
    got = by_group(teachers(samples, sampler, data=folders, per_group=2))
    assert got[1] == samples[8:]
    assert [t.source for t in got[0]] == ["policy"] * 6 + ["teacher"] * 2
    scores = {lead: likelihood(tiny_policy, sampler, "q", lead, "42") for lead in leads}
    best = sorted(scores, key=scores.get, reverse=True)[:2]
    assert [t.text for t in got[0][6:]] == [f"{lead}42" for lead in best]


def test_what_a_source_draws_is_a_function_of_seed_and_step(tmp_path, answering):
    inputs = chat(tmp_path, a=[str(i) for i in range(50)])
    sampler = answering(lambda *_: "")
    use = {"use": "expert", "data": "d"}
    texts = [
        added(use, [sample("a", 0, 0.0)], {}, step=step, seed=seed, sampler=sampler, inputs=inputs)[-1].text
        for step, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


class Pool:
    """A trajectories artifact of episodes in a form, as a stage with an environment writes it."""

    def __init__(self, folder, sampler):
        self.folder, self.sampler = folder, sampler
        self.file = Trajectories(folder, 1.0, 0, partial(decode, sampler.policy.tokenizer))
        self.samples = []

    def add(self, name, group, score, **more):
        tokenizer = self.sampler.policy.tokenizer
        encoded = encode_completion(tokenizer, [{"role": "assistant", "content": name}])
        seen = encode_reply(tokenizer, "ok")
        ids = [*encoded, *seen, *encoded]
        turns = [Turn(len(encoded), len(seen), 0.0, 0.5), Turn(len(encoded), 0, score, 0.5)]
        lps = [-0.5] * len(encoded) + [0.0] * len(seen) + [-0.25] * len(encoded)
        made = Sample(row(name), group, "policy", [1, 2], ids, lps, "stop", name, turns=turns, versions=[3] * len(ids))
        made.scores, made.reward = {"environment.earned": score}, score
        self.samples.append(replace(made, **more))
        return made

    def written(self):
        self.file.add(3, self.samples, [None] * len(self.samples))
        self.file.publish(self.folder, [])
        return {"extra_samples.0.data": self.folder}


def test_a_pool_gives_a_group_that_failed_throughout_one_success_and_a_mixed_one_none(tmp_path, answering):
    sampler = answering(lambda *_: "")
    pool = Pool(tmp_path, sampler)
    stored = pool.add("a", 0, 1.0)
    pool.add("a", 0, 0.0)
    pool.add("b", 1, 1.0)
    pool.add("c", 2, 1.0, source="replay")
    pool.add("c", 2, 1.0, finish="length")
    use, inputs = {"use": "collected", "data": "before.trajectories"}, pool.written()
    failed = [sample("a", 0, 0.0) for _ in range(4)]
    mixed = [sample("b", 1, score) for score in (0.0, 1.0, 0.0)]
    nowhere = [sample("c", 2, 0.0)]
    got = by_group(added(use, [*failed, *mixed, *nowhere], {}, sampler=sampler, inputs=inputs))
    assert got[0][:3] == failed[:3]
    (one,) = got[0][3:]
    assert (one.source, one.group, one.finish, one.versions) == ("replay", 0, "stop", [0] * len(stored.completion_ids))
    assert (one.completion_ids, one.logprobs) == (stored.completion_ids, stored.logprobs)
    # Observed tokens are nobody's samples, the text that rewards see is the last turn's, and rewards score it anew.
    assert (one.own, one.text, one.scores, one.reward) == (stored.own, "a", {}, None)
    assert earned([one]) == [1.0]
    assert got[1] == mixed
    assert got[2] == nowhere


def test_own_successes_come_before_those_of_the_pool(tmp_path, answering):
    sampler = answering(lambda *_: "")
    pool = Pool(tmp_path, sampler)
    stored = {name: pool.add(name, group, 1.0).completion_ids for group, name in enumerate("ab")}
    inputs = {"extra_samples.1.data": pool.written()["extra_samples.0.data"]}
    uses = ["successes", {"use": "collected", "data": "before.trajectories"}]
    parts = [bind(ExtraSamplesUse.model_validate(use), f"extra_samples.{i}", inputs) for i, use in enumerate(uses)]
    states, added = {}, []
    for score in (1.0, 0.0):
        samples = [sample("a", 0, score), sample("a", 0, 0.0), sample("b", 1, 0.0), sample("b", 1, 0.0)]
        for part in parts:
            samples = part.ask(0, {"samples": samples, "states": states, "seed": 0, "sampler": sampler})
        added.append([[t.completion_ids for t in of if t.source == "replay"] for of in by_group(samples).values()])
        states = json.loads(json.dumps(states))
    assert added == [[[], [stored["b"]]], [[[7]], [stored["b"]]]]
    # Its own are a part of its checkpoints; the pool is not.
    assert states["extra_samples.0"]["successes"].keys() == {"a"}
    assert states.get("extra_samples.1", {}) == {}


def test_a_pool_of_another_tokenizer_or_without_the_score_is_refused(tmp_path, answering):
    sampler = answering(lambda *_: "")
    pool = Pool(tmp_path, sampler)
    pool.add("a", 0, 1.0, completion_ids=[7, 8, 9], logprobs=[0.0] * 3, turns=[])
    inputs = pool.written()
    lines = pq.read_table(tmp_path / "trajectories.parquet").to_pylist()
    table = pa.Table.from_pylist([{**line, "completion": "other"} for line in lines], schema=EPISODES)
    pq.write_table(table, tmp_path / "trajectories.parquet")
    use = {"use": "collected", "data": "before.trajectories"}
    with pytest.raises(StepError, match="not of the policy's tokenizer"):
        added(use, [sample("a", 0, 0.0)], {}, sampler=sampler, inputs=inputs)
    with pytest.raises(StepError, match=r"no score 'exact'; it has: environment\.earned"):
        added({**use, "reward": "exact"}, [sample("a", 0, 0.0)], {}, sampler=sampler, inputs=inputs)
