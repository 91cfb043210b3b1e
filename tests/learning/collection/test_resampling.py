import json
import math
from collections import Counter

import pytest
from scipy import stats

from learning.algorithm.loss import with_dropped
from learning.batch.batch_layout import forest
from learning.collection.resampling import compute_half_width
from learning.data.rows import write_rows
from learning.lookup import Bound, bind
from learning.rewards.answers import exact
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import SamplingSlots, keep_groups
from learning.samples.sample import History, Sample, by_group
from learning.sampling.iteration_context import IterationContext
from schemas.errors import StepError
from schemas.use import FilterGroupsUse, PromptSamplerUse, ResampleUse, RolloutUse


def row(name, answer="1"):
    messages = [{"role": "user", "content": name}]
    return {"id": name, "prompt": messages, "answer": answer, "family": "f", "metadata": "{}"}


ROWS = [row(name) for name in "abcdefghijklmnop"]


def sample(name, group, score, **more):
    filled = {"scores": {"exact": score}, "reward": score, "versions": [0], **more}
    return Sample(row(name), group, "policy", [1, 2], [7], [-0.5], "stop", "x", **filled)


def follow(use, samples, *, sampler=None, states=None, inputs=None, number=0, rows=ROWS, num_groups=4, n=2, step=0):
    bound = bind(ResampleUse.model_validate(use), "resample.0", inputs)
    supplies = {
        "samples": samples,
        "rows": rows,
        "num_groups": num_groups,
        "n": n,
        "round": number,
        "seed": 3,
        "step": step,
    }
    return bound.ask(step, {**supplies, "sampler": sampler, "states": {} if states is None else states})


def parts(follow_ups, *, plan="uniform", keep=None, inputs=None, max_rounds=8):
    """The slots of a stage up to the samples that are trained on; right is what is equal to the row's answer."""
    uses = [ResampleUse.model_validate(use) for use in follow_ups]
    return SamplingSlots(
        prompt_sampler=bind(PromptSamplerUse.model_validate(plan), "prompt_sampler", inputs),
        rollout=bind(RolloutUse(use="synchronous"), "rollout"),
        logits_processors=(),
        rewards=(Bound("exact", exact, {}, "rewards.0"),),
        weights=(1.0,),
        resample=tuple(bind(use, f"resample.{i}", inputs) for i, use in enumerate(uses)),
        extra_samples=(),
        filter_groups=bind(FilterGroupsUse.model_validate(keep), "filter_groups") if keep else None,
        max_sampling_rounds=max_rounds,
    )


def run(made, sampler, *, history=None, states=None, rows=ROWS, num_groups=4, n=2, metrics=None):
    supplies = {
        "rows": rows,
        "num_groups": num_groups,
        "n": n,
        "seed": 3,
        "step": sampler.step,
        "metrics": metrics or {},
    }
    supplies["states"] = {} if states is None else states
    return collect_samples(made, IterationContext(**supplies, sampler=sampler, history=history or History()), {})


def varied(prompt, number):
    """Prompts a to h: one of two right; the others never."""
    return "1" if prompt[0] in "abcdefgh" and number == 0 else "0"


def test_refill_samples_other_problems_until_enough_groups_vary(answering):
    made = parts(["dynamic_sampling"], keep="reward_variance")
    for step in range(4):
        sampler = answering(varied, step=step)
        samples = run(made, sampler)
        groups = by_group(samples)
        assert len({members[0].row["id"] for members in groups.values()}) == len(groups)
        trained = keep_groups(made.filter_groups, samples, step, {}, {})
        assert len(set(trained.paths["group"].tolist())) == 4
        kept = [samples[i].row["id"] for i in trained.paths["path"].tolist()]
        assert set(kept) <= set("abcdefgh")


def test_refill_drops_what_is_too_much_and_the_history_knows_it_all_the_same(answering):
    history, sampler = History(), answering(varied)
    samples = run(parts([{"use": "dynamic_sampling", "size": 9, "budget": 9}]), sampler, history=history)
    differ = [len({t.scores["exact"] for t in members}) > 1 for members in by_group(samples).values()]
    assert sum(differ) == 4
    assert len(history.rates) == sum(r.n for r in sampler.engine.requests) / 2 > len(differ)


def groups_of(varied, equal):
    """Groups of two samples each: some have both scores, the others one."""
    scores = [(0.0, 1.0)] * varied + [(0.0, 0.0)] * equal
    return [sample("a", number, score) for number, both in enumerate(scores) for score in both]


def test_refill_requests_the_missing_groups_over_the_lowest_keep_rate():
    """Rounds of 8, 3 and 3 groups, of which 6, 1 and 1 vary; then an iteration whose first round keeps 7 of 8."""
    use, states = {"use": "dynamic_sampling", "budget": 9, "size": "by_keep_rate"}, {}
    rows = [row(f"p{i}") for i in range(99)]

    def missing(varied, equal, number, step=0):
        follow_ups = follow(
            use, groups_of(varied, equal), states=states, number=number, rows=rows, num_groups=8, step=step
        )
        return len(follow_ups[1])

    assert missing(6, 2, 0) == 3 == math.ceil(2 / (6 / 8))
    assert missing(7, 4, 1) == 3 == math.ceil(1 / (1 / 3))
    assert missing(8, 6, 2) == 0
    # 8 of 14 over the whole iteration are fewer than 7 of 8, and more than 1 of 3 in a round that is over.
    assert missing(7, 1, 0, step=1) == 2 == math.ceil(1 / (8 / 14))
    # Nothing varies: as many as the budget leaves.
    assert missing(0, 8, 0, step=2) == 9 * 8 - 8


@pytest.mark.parametrize(("budget", "groups"), [(1.0, 4), (2.0, 8), (3.5, 14)])
def test_refill_ends_with_its_budget(answering, budget, groups):
    samples = run(parts([{"use": "dynamic_sampling", "budget": budget}]), answering(lambda *_: "0"))
    assert len(by_group(samples)) == groups
    with pytest.raises(StepError, match=f"0 of 4 groups have scores that differ, after {groups} groups"):
        run(parts([{"use": "dynamic_sampling", "budget": budget, "short": "stop"}]), answering(lambda *_: "0"))


def test_refill_ends_when_there_is_no_other_problem_and_with_the_stages_rounds(answering):
    use = {"use": "dynamic_sampling", "budget": 100, "size": 1}
    assert len(by_group(run(parts([use]), answering(lambda *_: "0"), rows=ROWS[:7]))) == 7
    assert len(by_group(run(parts([use], max_rounds=3), answering(lambda *_: "0")))) == 6


def test_trap_05_refill_judges_by_the_named_raw_score():
    def two(right, length):
        return {"scores": {"exact": right, "length": length}, "reward": right + length}

    samples = [sample("a", 0, 0.0, **two(0.0, i / 10)) for i in range(2)]
    assert len(follow("dynamic_sampling", samples, num_groups=1)[1]) == 1
    assert follow({"use": "dynamic_sampling", "reward": "length"}, samples, num_groups=1)[1] == []
    with pytest.raises(StepError, match="no reward 'lenght'"):
        follow({"use": "dynamic_sampling", "reward": "lenght"}, samples)


def test_trap_06_only_reject_moves_a_baseline():
    own, shown = [sample("a", 0, float(i)) for i in (0, 1, 1)], [sample("a", 0, 0.0), sample("a", 0, 1.0)]
    for one in shown:
        one.source = "in_context"
    kept, requests = follow("reject", [*own, *shown])
    assert kept == [*own, shown[1]]
    assert requests == []
    assert follow({"use": "reject", "sources": ["hinted"]}, [*own, *shown])[0] == [*own, *shown]
    shown[1].scores["exact"] = None
    assert follow("reject", [*own, *shown])[0] == own


def test_trap_23_what_refill_drops_does_not_depend_on_length(answering):
    """Half of the problems have long answers; surplus groups are dropped by their place, not by what they are."""
    made = parts([{"use": "dynamic_sampling", "size": 8, "budget": 9}], keep="reward_variance")
    long = set("acegikmo")
    sampled, trained = Counter(), Counter()
    for step in range(200):
        sampler = answering(
            lambda p, i: ("1" if i == 0 and p in "abcdefgh" else "0") + 9 * " " * (p in long), step=step
        )
        samples = run(made, sampler)
        sampled.update(p in long for p in sampler.engine.prompts if p in "abcdefgh")
        batch = keep_groups(made.filter_groups, samples, step, {}, {})
        trained.update(samples[i].row["id"] in long for i in batch.paths["path"].tolist())
    assert trained.total() == 200 * 4 * 2
    assert sampled.total() > 200 * 4
    assert trained[True] / trained.total() == pytest.approx(sampled[True] / sampled.total(), abs=0.03)


def test_half_width_is_students():
    for values in ([1, 0, 1, 0], [0.2, 0.4, 0.9], [1, 1, 1, 0, 0, 0, 0]):
        n = len(values)
        low, high = stats.t.interval(0.95, n - 1, loc=0, scale=stats.sem(values))
        assert compute_half_width(stats.tstd(values), n) == pytest.approx((high - low) / 2, rel=1e-12)


def asked(requests):
    return {request.group: request.n for request in requests}


def test_more_completions_go_to_the_most_informative_prompts():
    sure, open_ = [1.0] * 4, [1.0, 0.0, 1.0, 0.0]
    samples = [sample("ab"[g], g, s) for g, scores in enumerate((sure, open_)) for s in scores]
    assert asked(follow({"use": "allocate", "extra": 3}, samples)[1]) == {1: 3}
    assert follow({"use": "allocate", "extra": 3}, samples, number=1)[1] == []
    assert asked(follow({"use": "allocate", "extra": 3, "rounds": 2}, samples, number=1)[1]) == {1: 3}
    # A large bonus evens out what was visited; two equal groups share.
    assert asked(follow({"use": "allocate", "extra": 4, "bonus": 100.0}, samples)[1]) == {0: 2, 1: 2}
    twins = [sample("ab"[g], g, s) for g in range(2) for s in open_]
    assert asked(follow({"use": "allocate", "extra": 4}, twins)[1]) == {0: 2, 1: 2}
    assert follow({"use": "allocate", "extra": 4}, samples[:4])[1] == []


def test_allocated_completions_join_their_group(answering):
    made = parts([{"use": "allocate", "extra": 3}])
    groups = by_group(run(made, answering(lambda p, i: str(int(p[0] in "ab" and i % 2)))))
    sizes = {members[0].row["id"]: len(members) for members in groups.values()}
    assert sum(sizes.values()) == 11 if set(sizes) & set("ab") else sum(sizes.values()) == 8
    assert all(size == 2 for name, size in sizes.items() if name not in "ab")


def test_only_groups_without_a_success_are_retried_once_with_solved_problems_in_sight(answering):
    made, states = parts([{"use": "retry_with_exemplars", "extra": 3, "demos": 1}]), {}
    prompts = []

    def write(prompt, number):
        prompts.append(prompt)
        return "1" if prompt in ("a", "b") else "0"

    samples = run(made, answering(write), states=states, rows=ROWS[:4], num_groups=4)
    retried = [t for t in samples if t.source == "in_context"]
    assert {t.row["id"] for t in retried} == {"c", "d"}
    assert Counter(t.group for t in retried) == {t.group: 3 for t in retried}
    assert len(samples) == 8 + 6
    shown = [p for p in prompts if len(p) > 1]
    assert all(p[:2] in ("a1", "b1") and p[2:] in ("c", "d") for p in shown)
    assert all(t.prompt_ids == next(o for o in samples if o.group == t.group).prompt_ids for t in retried)
    states = json.loads(json.dumps(states))
    assert {one["id"] for one in states["resample.0"]["bank"]} == {"a", "b"}


def test_a_retry_needs_something_solved_that_has_room(answering, tmp_path):
    use = {"use": "retry_with_exemplars", "demos": 4}
    sampler = answering(lambda *_: "0")
    assert follow(use, [sample("a", 0, 0.0)], sampler=sampler)[1] == []
    chat = [row(c * 30) | {"completion": [{"role": "assistant", "content": "1"}]} for c in "vwxyz"]
    write_rows(tmp_path, "chat", chat)
    inputs = {"resample.0.data": tmp_path}
    (request,) = follow(use | {"data": "d"}, [sample("a", 0, 0.0)], sampler=sampler, inputs=inputs)[1]
    # 128 tokens: the prompt has 4, a completion 16, a demonstration 30 + 1 and the four ends of two turns.
    assert len(request.context) == 2 * 3 + 1
    assert len(sampler.encode(request.context)) == 4 + 3 * 35


@pytest.fixture
def solutions(tmp_path):
    chat = [row(name) | {"completion": [{"role": "assistant", "content": "abcdefghij"}]} for name in "abc"]
    write_rows(tmp_path, "chat", chat)
    return {"resample.0.data": tmp_path}


@pytest.mark.parametrize("place", ["prompt", "completion"])
def test_hints_grow_until_a_completion_is_right(answering, solutions, place):
    def write(prompt, number):
        return "1" if prompt.endswith("abcde") and number == 0 else "0"

    made = parts([{"use": "hint", "data": "d", "place": place, "lead": "|"}], inputs=solutions)
    sampler = answering(write)
    rows = [row(name, "1" if place == "prompt" else "abcde1") for name in "abcd"]
    samples = run(made, sampler, rows=rows, num_groups=4)
    groups = by_group(samples)
    hinted = [g for g in groups.values() if g[0].source == "hinted"]
    assert sorted(g[0].row["id"] for g in hinted) == ["a", "b", "c"]
    assert len(samples) == 4 * 2
    # ⌈0.25·10⌉ and ⌈0.5·10⌉ of ten tokens; the third share is not needed.
    prompt_counts = Counter(sampler.engine.prompts)
    lead = "|" if place == "prompt" else ""
    assert prompt_counts == Counter(["d"]) + Counter(
        c + more for c in "abc" for more in ("", f"{lead}abc", f"{lead}abcde")
    )
    batch = with_dropped(forest([t for g in hinted for t in g]), False)
    size = len(hinted[0][0].completion_ids) - hinted[0][0].given
    assert len(batch.sampled_T) == 6 * size
    assert all(t.given == (5 if place == "completion" else 0) for g in hinted for t in g)


def test_a_group_with_one_right_completion_is_returned_unchanged(answering, solutions):
    samples = [sample("a", 0, 0.0), sample("a", 0, 1.0), sample("z", 1, 0.0)]
    before = [json.dumps(t.to_json()) for t in samples]
    use = {"use": "hint", "data": "d"}
    kept, requests = follow(use, samples, sampler=answering(lambda *_: ""), inputs=solutions)
    assert [json.dumps(t.to_json()) for t in kept] == before
    assert requests == []


def test_hints_end_with_their_shares_and_with_the_models_room(answering, solutions):
    made = parts([{"use": "hint", "data": "d", "shares": [0.1, 0.2]}], inputs=solutions)
    sampler = answering(lambda *_: "0")
    samples = run(made, sampler, rows=ROWS[:3], num_groups=3)
    assert len(sampler.engine.requests) == 3 * 3
    assert {t.source for t in samples} == {"hinted"}
    use = {"use": "hint", "data": "d", "lead": "-" * 110}
    kept, requests = follow(use, [sample("a", 0, 0.0)], sampler=sampler, inputs=solutions)
    assert (len(kept), requests) == (1, [])


def test_follow_ups_are_a_function_of_seed_step_and_round():
    samples = [sample("a", 0, 0.0)]
    names = [
        [ask.row["id"] for ask in follow("dynamic_sampling", samples, step=step, number=number)[1]]
        for step, number in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    assert names[0] == names[1]
    assert len({tuple(some) for some in names}) == 3
