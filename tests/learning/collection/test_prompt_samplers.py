import math
from collections import Counter

import numpy as np
import pytest

from learning.collection.prompt_samplers import choose_prompts
from learning.data.rows import write_rows
from learning.lookup import bind
from learning.samples.engine_protocol import Turn
from learning.samples.sample import History, Sample, SampleRequest, by_group
from schemas.errors import StepError
from schemas.use import PromptSamplerUse


def row(name, prompt=None):
    messages = [{"role": "user", "content": prompt or name}]
    return {"id": name, "prompt": messages, "answer": name, "family": "f", "metadata": "{}"}


ROWS = [row(name) for name in "abcdefgh"]


def history(**rates):
    made = History()
    made.rates = {key: value if isinstance(value, list) else [value] for key, value in rates.items()}
    return made


def asked(use, inputs=None, *, step=0, rows=ROWS, num_groups=4, n=2, **supplies):
    bound = bind(PromptSamplerUse.model_validate(use), "prompt_sampler", inputs)
    base = {"rows": rows, "num_groups": num_groups, "n": n, "seed": 5, "step": step, "states": {}, "metrics": {}}
    return bound.ask(step, {**base, "history": History(), **supplies})


def ids(requests):
    return [request.row["id"] for request in requests]


def test_uniform_visits_every_problem_equally_often():
    seen = Counter(name for step in range(6) for name in ids(asked("uniform", step=step)))
    assert seen == dict.fromkeys("abcdefgh", 3)


def test_one_greedy_completion_joins_every_group(answering):
    requests = asked("with_greedy", step=3)
    sampler = answering(lambda prompt, number: prompt)
    groups = by_group(sampler.sample(requests))
    assert [[t.source for t in members] for members in groups.values()] == [["policy", "policy", "greedy"]] * 4
    assert all(len({t.row["id"] for t in members}) == 1 for members in groups.values())
    assert ids(requests[:4]) == ids(asked("uniform", step=3))
    temperatures = [request.temperature for request in sampler.engine.requests]
    assert temperatures == [None] * 4 + [0.0] * 4
    assert sampler.new_group() == 4


def visited(keep, times=4):
    """A history in which a share of visits is neither all right nor all wrong."""
    return history(**{f"p{i}": [0.5 if i < keep * times else float(i % 2)] for i in range(times)})


@pytest.mark.parametrize(("rate", "size"), [(0.5, 16), (0.8, 10), (1.0, 8), (0.0, 32)])
def test_the_next_size_follows_the_keep_rate(rate, size):
    requests = asked("adaptive_size", num_groups=8, history=visited(rate, 10))
    assert len(requests) == size
    assert math.ceil(8 / rate) == size if rate else size == 4 * 8


def test_the_keep_rate_is_that_of_the_last_iteration():
    states, seen = {}, history()
    assert len(asked("adaptive_size", states=states, history=seen)) == 4
    seen.rates |= {"a": [0.0], "b": [0.5]}
    assert len(asked("adaptive_size", states=states, history=seen)) == 8
    # Nothing new: the rate stays. Then all of the new visits vary.
    assert len(asked("adaptive_size", states=states, history=seen)) == 8
    seen.rates |= {"a": [0.0, 0.5], "c": [0.25]}
    assert len(asked("adaptive_size", states=states, history=seen)) == 4


def test_the_lowest_keep_rate_never_rises():
    states, seen, use = {}, history(), {"use": "adaptive_size", "keep_rate": "lowest"}
    for new, size in (({}, 4), ({"a": [0.0], "b": [0.5]}, 8), ({"c": [0.25]}, 8), ({"d": [0.0]}, 16)):
        seen.rates |= new
        assert len(asked(use, states=states, history=seen)) == size


def test_asking_for_more_or_less_skips_and_repeats_no_problem():
    states, seen = {}, history()
    walked = ids(asked("adaptive_size", states=states, history=seen))
    seen.rates |= {"a": [0.0], "b": [0.5]}
    walked += ids(asked("adaptive_size", states=states, history=seen))
    walked += ids(asked("adaptive_size", states=states, history=seen))
    assert [sorted(walked[i : i + 8]) for i in (0, 8)] == [list("abcdefgh")] * 2


def test_hard_focus_retains_the_hardest_of_those_retained():
    rows = [row(name) for name in "abcd"]
    states, seen = {}, history(a=1.0, b=0.5, c=0.25, d=0.0)
    share = {"piecewise": {0: 0.5, 1: 0.25}}
    use = {"use": "hard_focus", "share": share}
    first = asked(use, rows=rows, states=states, history=seen)
    assert Counter(ids(first)) == {"c": 2, "d": 2}
    seen.rates["c"].append(0.9)
    seen.rates["a"].append(0.0)
    second = asked(use, rows=rows, states=states, history=seen, step=1)
    assert ids(second) == ["d"] * 4


def test_hard_focus_looks_at_everything_before_it_judges():
    use = {"use": "hard_focus", "share": {"piecewise": {0: 1.0, 2: 0.25}}}
    states, seen = {}, history()
    walked = [ids(asked(use, states=states, history=seen, step=step)) for step in (0, 1)]
    assert sorted(walked[0] + walked[1]) == list("abcdefgh")
    seen = history(**{name: 0.1 * i for i, name in enumerate("hgfedcb")})
    assert set(ids(asked(use, states=states, history=seen, step=2))) == {"a", "h"}


def test_pools_give_their_shares():
    rates = dict(zip("abcdefgh", (0.0, 0.25, 0.3, 0.5, 0.75, 0.8, 0.9, 1.0), strict=True))
    use = {"use": "pools", "borders": [0.25, 0.75], "shares": [0.5, 0.25, 0.25]}
    for step in range(5):
        names = ids(asked(use, history=history(**rates), step=step))
        assert sum(n in "ab" for n in names) == 2
        assert sum(n in "cde" for n in names) == 1
        assert sum(n in "fgh" for n in names) == 1
    # The hard pool lacks one of four: another one gives it, nothing is taken twice.
    names = ids(asked(use | {"shares": [1, 0, 0]}, num_groups=4, history=history(**rates)))
    assert set("ab") < set(names)
    assert len(set(names)) == 4
    with pytest.raises(StepError, match="2 borders divide 3 pools"):
        asked(use | {"shares": [1.0]})


def test_problems_not_yet_visited_are_in_the_pool_of_their_rate():
    use = {"use": "pools", "borders": [0.5], "shares": [0, 1], "unseen": 0.6}
    assert set(ids(asked(use, history=history(a=0.1, b=0.2, c=0.3, d=0.4)))) == set("efgh")


@pytest.mark.parametrize(("entropy", "source", "temperature"), [(0.3, "hot", 2.0), (0.7, "cold", 0.5)])
def test_entropy_says_which_way_the_extra_completions_push(entropy, source, temperature):
    use = {"use": "hot_cold", "target": 0.5, "hot": 2.0, "cold": 0.5, "extra": 3}
    requests = asked(use, metrics={"entropy": entropy})
    assert requests[:4] == asked("uniform")
    assert {(a.n, a.source, a.temperature, a.group) for a in requests[4:]} == {(3, source, temperature, None)}
    assert ids(requests[4:]) == ids(requests[:4])
    assert asked(use) == asked("uniform")


def test_part_of_a_group_sees_demonstrations_and_none_of_it_is_trained_on(tmp_path, answering):
    chat = [row(name) | {"completion": [{"role": "assistant", "content": name.upper()}]} for name in "abcd"]
    write_rows(tmp_path, "chat", chat)
    use = {"use": "in_context", "data": "solved", "with_demos": 1, "demos": 2}
    requests = asked(use, {"prompt_sampler.data": tmp_path}, n=4)
    samples = answering(lambda prompt, number: "x").sample(requests)
    for members in by_group(samples).values():
        *plain, shown = members
        assert [t.source for t in members] == ["policy"] * 3 + ["in_context"]
        assert {tuple(t.prompt_ids) for t in members} == {tuple(plain[0].prompt_ids)}
        assert shown.context_ids[-len(shown.prompt_ids) :] == shown.prompt_ids
        assert len(shown.context_ids) == len(shown.prompt_ids) + 2 * 6
    contexts = [request.context for request in requests if request.context]
    assert all(request.row["prompt"][0] not in request.context[:-1] for request in requests if request.context)
    assert all([m["content"] for m in c[1:4:2]] == [m["content"].upper() for m in c[0:4:2]] for c in contexts)
    with pytest.raises(StepError, match="leaves no plain completion"):
        asked(use | {"with_demos": 4}, {"prompt_sampler.data": tmp_path}, n=4)


def test_a_plan_is_a_function_of_seed_step_and_history():
    pools = {"use": "pools"}
    assert asked(pools) == asked(pools)
    assert any(asked(pools, step=step) != asked(pools) for step in range(1, 4))
    assert choose_prompts(7, 3, 5, 2) == choose_prompts(7, 9, 5, 0)[6:]
    assert isinstance(asked("uniform")[0], SampleRequest)
    assert np.array_equal(sorted(choose_prompts(5, 5, 1, 0)), range(5))


DIFFICULT = {"use": "by_difficulty", "least": 2, "easy": 0.6}


def given(requests):
    counts = Counter()
    for request in requests:
        counts[request.row["id"]] += request.n
    return dict(counts)


def test_what_is_solved_often_gets_fewer_completions_and_what_they_leave_goes_to_others():
    rates = history(a=0.0, b=0.5, c=0.6, d=0.7, e=0.8, f=0.9, g=1.0)  # h has not been visited
    requests = asked({**DIFFICULT, "most": 10}, num_groups=6, n=8, history=rates)
    assert sum(request.n for request in requests) == 6 * 8
    assert len(requests) > 6
    of = {"a": 10, "b": 10, "c": 10, "d": 8, "e": 6, "f": 4, "g": 2, "h": 8}
    assert all(request.n == of[request.row["id"]] for request in requests[:-1])
    # Nobody known: `uniform`.
    plain = asked(DIFFICULT, num_groups=6, n=8, history=history())
    assert [(a.row["id"], a.n) for a in plain] == [(a.row["id"], a.n) for a in asked("uniform", num_groups=6, n=8)]


@pytest.mark.parametrize("rate", [0.0, 0.6, 0.625, 0.7, 0.75, 0.9, 1.0])
def test_completions_fall_on_the_hyperbola_of_the_released_code(rate):
    requests = asked({**DIFFICULT, "shape": "hyperbola"}, num_groups=99, n=8, history=history(a=rate))
    (count,) = {request.n for request in requests[:-1] if request.row["id"] == "a"}
    assert count == (8 if rate <= 0.6 else math.floor(9 / rate - 7 + 1e-9))


def test_iterations_walk_on_through_shuffled_epochs_and_no_group_is_too_small_to_compare():
    states, seen = {}, []
    for step in range(12):
        rates = history(**{key: [1.0, 0.5 + 0.06 * step] for key in "abcd"})
        requests = asked(DIFFICULT, step=step, states=states, history=rates, num_groups=3, n=5)
        assert sum(request.n for request in requests) == 15
        assert min(request.n for request in requests) >= 2
        seen += ids(requests)
    visits = Counter(seen)
    assert visits.keys() == set("abcdefgh")
    assert max(visits.values()) - min(visits.values()) <= 1


def test_an_episode_may_be_a_little_longer_than_the_longest_success_and_a_hard_one_as_long_as_any():
    known = history(a=0.5, b=0.0)
    known.turns = {"a": 4}
    requests = asked({**DIFFICULT, "spare_turns": 2}, num_groups=8, n=4, history=known)
    assert {request.row["id"]: request.row.get("max_turns") for request in requests} == {
        "a": 6,
        **dict.fromkeys("bcdefgh"),
    }
    assert all("max_turns" not in request.row for request in asked(DIFFICULT, num_groups=8, n=4, history=known))


def test_more_at_least_than_at_most_is_refused():
    with pytest.raises(StepError, match="least 4 is above 3 completions"):
        asked({**DIFFICULT, "least": 4, "most": 3}, n=8)


def test_history_knows_the_longest_success_of_a_problem():
    made = History()
    for scores, turns in (([1.0, 0.0], [3, 8]), ([0.0, 0.0], [8, 8]), ([1.0, 1.0], [5, 4])):
        made.add([played("a", score, size) for score, size in zip(scores, turns, strict=True)] + [played("b", 0.0, 2)])
    again = History()
    again.load(made.to_json())
    assert again.turns == {"a": 5}
    assert again.rates == {"a": [0.5, 0.0, 1.0], "b": [0.0, 0.0, 0.0]}


def played(name, score, turns):
    ended = [Turn(1)] * turns
    ids = [0] * turns
    more = {"scores": {"environment.earned": score}, "turns": ended}
    return Sample(row(name), ord(name), "policy", [1], ids, [0.0] * turns, "stop", "", **more)


def test_problems_that_were_solved_leave_after_their_epoch():
    rows, history, state, seen = [{"id": str(i)} for i in range(5)], History(), {}, []
    for _ in range(7):
        made = bind(PromptSamplerUse(use="unsolved", below=0.5), "prompt_sampler").ask(
            0, {"rows": rows, "num_groups": 2, "n": 3, "seed": 4, "state": state, "history": history}
        )
        assert [request.n for request in made] == [3, 3]
        seen += [request.row["id"] for request in made]
        history.rates = {"1": [1.0, 0.4], "2": [0.0, 0.5]}
    assert sorted(seen[:5]) == list("01234")
    # 2 was solved in the first epoch; 1 is below the bound again.
    assert [sorted(seen[at : at + 4]) for at in (5, 9)] == [list("0134")] * 2
    assert state["kept"] == list("0134")
    assert seen[5:9] != seen[9:13]
