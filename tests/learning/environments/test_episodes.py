"""Episodes: turns of a model with an environment's answers in between, token by token what they should be."""

import copy
import threading
from dataclasses import replace

import pytest
import torch

from learning.data.chat import decode, encode_prompt
from learning.environments.clock import ThreadClock, VirtualClock
from learning.environments.episodes import Episodes
from learning.environments.protocol import Outcome
from learning.generation.engines.torch import Engine
from learning.models.policy import Policy
from learning.samples.engine_protocol import Flight, Request, Sampling, Turn
from schemas.errors import StepError

SAMPLING = Sampling(1.0, 60, entropy=True)


class Echo:
    """Says how many turns there were and the last turn's length; ends after so many as the row says."""

    def __init__(self, seconds=None):
        self.seconds = seconds
        self.seeds, self.begun, self.threads = [], 0, set()

    def begin(self, row, seed):
        self.begun += 1
        self.seeds.append(seed)
        world, turns = self, []

        class Played:
            def step(self, action):
                world.threads.add(threading.current_thread())
                turns.append(action)
                done = len(turns) >= row["turns"]
                seconds = world.seconds(row, seed, len(turns)) if world.seconds else None
                observation = f"{len(turns)}:{len(action)}:{seed % 7}"
                return Outcome(observation, done, float(len(action)), seconds, bool(len(action) % 2))

        return Played()


def asked(policy, texts, turns=3, n=2):
    rows = [{"id": text, "turns": turns, "prompt": [{"role": "user", "content": text}]} for text in texts]
    ids = [encode_prompt(policy.tokenizer, row["prompt"]) for row in rows]
    return [Request(some, n, 5 + i, row=row) for i, (some, row) in enumerate(zip(ids, rows, strict=True))]


def closing(policy, at=0.25):
    """A processor under which turns end soon, so that there are many of them."""

    def process(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        rest = logits_BV.logsumexp(-1)
        logits_BV[:, policy.tokenizer.eos_token_id] = rest + torch.tensor(at).log()
        return logits_BV

    return process


def played(policy, requests, sampling=SAMPLING, engine=None, **how):
    sampling = replace(sampling, processor=closing(policy))
    environment = how.pop("environment", None) or Echo()
    how = {"tokenizer": policy.tokenizer, "max_turns": 4, **how}
    return Episodes(engine or Engine(policy), environment, **how).generate(requests, sampling)


def parts(request, made):
    """The model's turns and what was observed, as ids."""
    ids, at, turn_texts = made.token_ids, 0, []
    for turn in made.turns:
        turn_texts.append((ids[at : at + turn.sampled], ids[at + turn.sampled : at + turn.sampled + turn.observed]))
        at += turn.sampled + turn.observed
    return turn_texts, ids[at:]


def test_the_ids_of_an_episode_are_the_templates_rendering_of_the_whole_conversation(tiny_policy):
    tokenizer = tiny_policy.tokenizer
    requests = asked(tiny_policy, ["ab", "c", "de<eos>f"])
    several = 0
    for request, of in zip(requests, played(tiny_policy, requests), strict=True):
        for made in of:
            messages, (turn_texts, tail) = list(request.row["prompt"]), parts(request, made)
            observations = []
            for turn, (sampled, observed) in zip(made.turns, turn_texts, strict=True):
                assert sampled[-1] == tokenizer.eos_token_id
                assert tokenizer.eos_token_id not in sampled[:-1]
                text = "".join(tokenizer.convert_ids_to_tokens(sampled[:-1]))
                observations.append(decode(tokenizer, sampled))
                assert (turn.reward, turn.ok, turn.measured) == (
                    len(observations[-1]),
                    len(observations[-1]) % 2 == 1,
                    True,
                )
                if observed:
                    several += 1
                    # What a model says may hold special tokens: written as they are, they are not text.
                    seed = decode(tokenizer, observed).rpartition(":")[2]
                    messages += [
                        {"role": "assistant", "content": text},
                        {"role": "user", "content": f"{len(observations)}:{len(observations[-1])}:{seed}"},
                    ]
            whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            rest = tail or (turn_texts[-1][0] if not turn_texts[-1][1] else [])
            if "<" in request.row["id"]:
                continue
            assert tokenizer.encode(whole, add_special_tokens=False) + rest == request.prompt_ids + made.token_ids
            assert made.finish in ("stop", "length")
            assert (made.finish == "stop") == (len(made.turns) == 3 and not tail)
    assert several >= 6


def full_lp(policy, prompt, ids):
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
    logits = closing(policy)(logits, None)
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("order", ["each", "together"])
def test_sampled_tokens_carry_the_trainers_log_probabilities_and_observed_ones_nothing(tiny_policy, order):
    requests = asked(tiny_policy, ["ab", "c"])
    for request, of in zip(requests, played(tiny_policy, requests, order=order), strict=True):
        for made in of:
            want, at = full_lp(tiny_policy, request.prompt_ids, made.token_ids), 0
            for turn in [*made.turns, Turn(len(made.token_ids))]:
                end = at + turn.sampled
                assert made.logprobs[at:end] == pytest.approx(want[at:end], abs=2e-5)
                assert made.logprobs[end : end + turn.observed] == [0.0] * turn.observed
                assert made.entropies[end : end + turn.observed] == [0.0] * turn.observed
                at = end + turn.observed
            assert made.sampled == len(made.token_ids) - sum(turn.observed for turn in made.turns)
            assert sum(tokens for _, tokens in made.versions) == len(made.token_ids)


def seen(completions):
    """What must not depend on when an answer came."""
    plain = [
        (g.token_ids, g.finish, [replace(t, seconds=0.0) for t in g.turns], g.sample) for of in completions for g in of
    ]
    return plain, [lp for of in completions for g in of for lp in g.logprobs]


def late(policy):
    """An environment whose very first answers come when everything else has ended, as far as it can."""
    others, ended = threading.Event(), []

    class Late(Echo):
        def begin(self, row, seed):
            played = super().begin(row, seed)
            if row["id"] == "ab":
                return type("Slow", (), {"step": lambda self, action: others.wait(60) and played.step(action)})()

            def step(action):
                outcome = played.step(action)
                ended.append(outcome.done)
                if len(ended) >= 4:
                    others.set()
                return outcome

            return type("Quick", (), {"step": lambda self, action: step(action)})()

    return Late()


def test_an_episode_becomes_the_same_in_whatever_order_answers_come(tiny_policy):
    requests = asked(tiny_policy, ["ab", "c", "d"])
    want = seen(played(tiny_policy, requests, order="together"))
    assert sum(len(turns) > 1 for _, _, turns, _ in want[0]) >= 4
    spread = {"environment": Echo(lambda row, seed, turn: seed % 11 / 3), "clock": VirtualClock(decode_s=0.5)}
    for how in (
        {},
        {"steps_per_answer": 0},
        {"steps_per_answer": 5},
        {"workers": 3, "environment": late(tiny_policy)},
        spread,
    ):
        got = seen(played(tiny_policy, requests, **how))
        if how is spread:
            got = ([(i, f, [replace(t, measured=True) for t in turns], s) for i, f, turns, s in got[0]], got[1])
        assert got[0] == want[0]
        assert got[1] == pytest.approx(want[1], abs=1e-5)


def test_runs_are_equal_to_the_bit_where_answers_are_counted_in_decode_steps(tiny_policy):
    requests = asked(tiny_policy, ["ab", "c", "d", "ef"], n=3)
    first = seen(played(tiny_policy, requests, steps_per_answer=3))
    assert seen(played(tiny_policy, requests, steps_per_answer=3, environment=late(tiny_policy), workers=8)) == first
    assert seen(played(tiny_policy, requests, order="together")) == seen(
        played(tiny_policy, requests, order="together")
    )


def test_siblings_have_random_numbers_of_their_own_and_an_episode_always_has_the_same(tiny_policy):
    requests, one, two = asked(tiny_policy, ["ab", "c"], n=4), Echo(), Echo()
    played(tiny_policy, requests, environment=one)
    played(tiny_policy, list(reversed(requests)), environment=two)
    assert len(set(one.seeds)) == one.begun == 8
    assert sorted(one.seeds) == sorted(two.seeds)
    assert threading.main_thread() not in one.threads


def test_the_clock_of_events_tells_what_each_order_costs(tiny_policy):
    """Two episodes of two turns: one slow then quick, the other quick then slow. A token takes 1 second."""
    took = {("ab", 1): 100.0, ("ab", 2): 1.0, ("c", 1): 2.0, ("c", 2): 90.0}
    requests = asked(tiny_policy, ["ab", "c"], turns=2, n=1)
    spent = {}
    for order in ("each", "together"):
        clock = VirtualClock(decode_s=1.0)
        environment = Echo(lambda row, seed, turn: took[row["id"], turn])
        ((ab,), (c,)) = played(tiny_policy, requests, environment=environment, clock=clock, order=order)
        spent[order] = clock.now
    x1, x2 = (turn.sampled for turn in ab.turns)
    y1, y2 = (turn.sampled for turn in c.turns)
    assert [turn.seconds for turn in ab.turns] == [100.0, 1.0]
    # Each: an episode takes as long as its own tokens and answers (a first turn's end waits for no other).
    assert spent["each"] == max(x1 + 100 + x2 + 1, y1 + 2 + y2 + 90)
    # Together: the longest turn and the slowest answer of all, turn after turn.
    first = max(x1, y1) + max(100 - (max(x1, y1) - x1), 2 - (max(x1, y1) - y1))
    second = max(x2, y2) + max(1 - (max(x2, y2) - x2), 90 - (max(x2, y2) - y2))
    assert spent["together"] == first + second


def test_workers_of_the_clock_of_events_take_one_step_at_a_time():
    clock = VirtualClock(workers=2)
    for number, seconds in enumerate((5.0, 1.0, 1.0, 10.0)):
        clock.submit(number, lambda seconds=seconds: Outcome(seconds=seconds))
    ends = []
    while answers := clock.collect(None):
        ends += [(answer.number, clock.now) for answer in answers]
    assert ends == [(1, 1.0), (2, 2.0), (0, 5.0), (3, 12.0)]
    assert clock.waited == 12.0


def test_threads_are_as_many_as_there_are_workers_and_say_what_went_wrong():
    clock, going, most, gate = ThreadClock(2), [], [], threading.Barrier(2, timeout=60)

    def step():
        going.append(1)
        most.append(len(going))
        gate.wait()
        going.pop()
        return Outcome("x")

    def broken():
        raise ValueError("no")

    for number in range(4):
        clock.submit(number, step)
    clock.submit(4, broken)
    all_answers = []
    while answers := clock.collect(None):
        all_answers += answers
    clock.close()
    assert sorted(answer.number for answer in all_answers) == [0, 1, 2, 3, 4]
    assert max(most) == 2
    (wrong,) = [answer for answer in all_answers if answer.error]
    assert (wrong.number, str(wrong.error)) == (4, "no")


def windows(policy, engine, requests, window, **how):
    """Episodes of calls that suspend after some tokens, put together; how many calls it took."""
    sampling = replace(SAMPLING, processor=closing(policy), window=window)
    pool = [replace(r, n=1, first=i) for r in requests for i in range(r.n)]
    whole, calls, tails = [[] for _ in pool], 0, 0
    while any(not made or made[-1].finish == "suspended" for made in whole):
        running = [i for i, made in enumerate(whole) if not made or made[-1].finish == "suspended"]
        continued = [
            replace(
                pool[i],
                begun=tuple(t for g in whole[i] for t in g.token_ids),
                turns=tuple(t for g in whole[i] for t in g.turns),
            )
            for i in running
        ]
        tails += sum(sum(t.sampled + t.observed for t in r.turns) < len(r.begun) for r in continued)
        made = Episodes(engine, Echo(), tokenizer=policy.tokenizer, max_turns=4, **how).generate(continued, sampling)
        for i, of in zip(running, made, strict=True):
            whole[i] += of
        calls += 1
    return whole, calls, tails


@pytest.mark.parametrize("window", [1, 2, 5, 13])
def test_trap_an_episode_cut_anywhere_goes_on_as_if_it_had_not_been(tiny_policy, window):
    requests = asked(tiny_policy, ["ab", "c", "d"])
    want = [g for of in played(tiny_policy, requests) for g in of]
    whole, calls, tails = windows(tiny_policy, Engine(tiny_policy), requests, window)
    assert calls >= 3
    assert tails > 0
    for made, one in zip(whole, want, strict=True):
        assert [t for g in made for t in g.token_ids] == one.token_ids
        assert [replace(t, seconds=0.0) for g in made for t in g.turns] == [replace(t, seconds=0.0) for t in one.turns]
        assert [lp for g in made for lp in g.logprobs] == pytest.approx(one.logprobs, abs=1e-5)
        assert made[-1].finish == one.finish
        # A window counts observed tokens; an answer is never cut in two.
        assert all(len(g.token_ids) <= window + max([t.observed for t in g.turns], default=0) for g in made)


class Plain:
    """An engine that is called for a batch and knows nothing else."""

    def __init__(self, engine):
        self.engine, self.calls = engine, []

    def generate(self, requests, sampling):
        assert all(request.limit is None and request.row is None for request in requests)
        self.calls.append(len(requests))
        return self.engine.generate(requests, sampling)

    def sync(self, version):
        self.engine.sync(version)


@pytest.mark.parametrize("window", [None, 5])
def test_an_engine_that_is_only_called_for_batches_gives_the_same_episodes(tiny_policy, window):
    requests, plain = asked(tiny_policy, ["ab", "c"]), Plain(Engine(tiny_policy))
    want = [g for of in played(tiny_policy, requests) for g in of]
    if window:
        whole, _, _ = windows(tiny_policy, plain, requests, window)
        assert [[t for g in made for t in g.token_ids] for made in whole] == [one.token_ids for one in want]
        return
    got = seen(played(tiny_policy, requests, engine=plain, order="together"))
    assert got[0] == seen([want])[0]
    assert len(plain.calls) == max(
        len(g.turns) + (sum(t.sampled + t.observed for t in g.turns) < len(g.token_ids)) for g in want
    )


def test_a_target_of_ended_episodes_puts_the_others_down_with_their_turns(tiny_policy):
    requests = asked(tiny_policy, ["ab", "c", "d"])
    want = [g for of in played(tiny_policy, requests) for g in of]
    sampling = replace(SAMPLING, target=3)
    completions = [g for of in played(tiny_policy, requests, sampling, steps_per_answer=0) for g in of]
    ended = [g.finish != "suspended" for g in completions]
    assert 3 <= sum(ended) < len(completions)
    for made, one in zip(completions, want, strict=True):
        assert one.token_ids[: len(made.token_ids)] == made.token_ids
        assert [replace(t, seconds=0.0) for t in made.turns] == [
            replace(t, seconds=0.0) for t in one.turns[: len(made.turns)]
        ]


def test_a_completion_without_a_problem_is_one_turn(tiny_policy):
    requests = [replace(request, row=None) for request in asked(tiny_policy, ["ab", "c"])]
    sampling = replace(SAMPLING, processor=closing(tiny_policy))
    plain = Engine(tiny_policy).generate(requests, sampling)
    completions = played(tiny_policy, requests)
    assert [g.token_ids for of in completions for g in of] == [g.token_ids for of in plain for g in of]
    assert not any(g.turns for of in completions for g in of)


def test_errors_say_what_to_do(tiny_policy):
    requests = asked(tiny_policy, ["ab", "c"])
    with pytest.raises(StepError, match="max_completion_length 3 has no room for a second turn"):
        played(tiny_policy, requests, replace(SAMPLING, max_new_tokens=3))
    assert played(tiny_policy, requests, replace(SAMPLING, max_new_tokens=3), max_turns=1)

    class Broken(Echo):
        def begin(self, row, seed):
            raise ValueError("no such page")

    with pytest.raises(StepError, match=r"the episode of (ab|c) failed: ValueError: no such page"):
        played(tiny_policy, requests, environment=Broken())
    episodes = Episodes(Engine(tiny_policy), Broken(), tokenizer=tiny_policy.tokenizer)
    sampling = replace(SAMPLING, processor=closing(tiny_policy))
    with pytest.raises(StepError, match="no such page"):
        episodes.generate(requests, sampling)
    episodes.environment = Echo()
    assert seen(episodes.generate(requests, sampling))[0] == seen(played(tiny_policy, requests, max_turns=8))[0]


def test_turns_that_are_used_up_and_answers_that_do_not_fit_end_an_episode_at_its_limit(tiny_policy):
    requests = asked(tiny_policy, ["ab"], turns=99, n=6)
    for made in played(tiny_policy, requests, max_turns=2)[0]:
        assert made.finish == "length"
        if len(made.turns) == 2:
            assert made.turns[1].observed == 0
    for made in played(tiny_policy, requests, replace(SAMPLING, max_new_tokens=14), max_turns=9)[0]:
        assert len(made.token_ids) <= 14
        assert made.finish == "length"


def test_a_problem_may_have_fewer_turns_than_the_environment_allows(tiny_policy):
    requests = asked(tiny_policy, ["ab", "c", "de"], turns=99, n=4)
    limits = [2, 4, None]
    requests = [
        replace(request, row=request.row | ({} if limit is None else {"max_turns": limit}))
        for request, limit in zip(requests, limits, strict=True)
    ]
    free = played(tiny_policy, asked(tiny_policy, ["ab", "c", "de"], turns=99, n=4), max_turns=3)
    for of, others, limit in zip(played(tiny_policy, requests, max_turns=3), free, (2, 3, 3), strict=True):
        assert max(len(made.turns) for made in of) == limit
        # What is cut off is the end, and nothing else.
        for made, whole in zip(of, others, strict=True):
            assert made.finish == "length"
            assert made.token_ids == whole.token_ids[: len(made.token_ids)]


def test_a_stop_sequence_ends_a_turn_which_is_then_closed_for_the_model(tiny_policy):
    """Whether it is cut there or not; every character of the first half of the alphabet is such a sequence."""
    eos = tiny_policy.tokenizer.eos_token_id
    sampling = replace(SAMPLING, stop=tuple((token,) for token in range(6, 54)))
    requests = asked(tiny_policy, ["ab", "c"], n=3)
    completions = [g for of in played(tiny_policy, requests, sampling) for g in of]
    closed = 0
    for made in completions:
        at = 0
        for turn in made.turns:
            end = at + turn.sampled
            last = made.token_ids[end - 1]
            assert last == eos or 6 <= last < 54
            if turn.observed and last != eos:
                closed += 1
                assert (made.token_ids[end], made.logprobs[end]) == (eos, 0.0)
            at = end + turn.observed
    assert closed > 3
    for cut in (1, 4):
        pool = [replace(r, n=1, first=i) for r in requests for i in range(r.n)]
        first = [of[0] for of in played(tiny_policy, pool, replace(sampling, window=cut))]
        again = [
            replace(r, begun=tuple(g.token_ids), turns=tuple(g.turns)) if g.finish == "suspended" else None
            for r, g in zip(pool, first, strict=True)
        ]
        rest = iter(played(tiny_policy, [r for r in again if r], sampling))
        whole = [g.token_ids + (next(rest)[0].token_ids if r else []) for r, g in zip(again, first, strict=True)]
        assert whole == [g.token_ids for g in completions]


def other(policy, seed=1):
    """The policy with weights of its own."""
    model = copy.deepcopy(policy.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return Policy(model, policy.tokenizer, policy.max_length)


def land(flight, steps=10_000):
    """What ends within some steps, by ticket and sample."""
    completions = {}
    for _ in range(steps):
        if not flight.running:
            break
        for ticket, made in flight.step():
            completions[ticket, made.sample] = made
    return completions


def test_a_flight_of_episodes_may_be_suspended_in_part_and_goes_on(tiny_policy):
    requests = asked(tiny_policy, ["ab", "c", "d"])
    want = [[(g.token_ids, g.finish) for g in of] for of in played(tiny_policy, requests)]
    episodes = Episodes(Engine(tiny_policy), Echo(), tokenizer=tiny_policy.tokenizer, max_turns=4)
    flight = episodes.flight(replace(SAMPLING, processor=closing(tiny_policy)))
    assert isinstance(flight, Flight)
    for ticket, request in enumerate(requests):
        flight.add(ticket, request)
    completions = land(flight, 4)
    taken = flight.suspend([1])
    assert all(ticket == 1 for ticket, one in taken if one.finish == "suspended")
    completions |= {(ticket, one.sample): one for ticket, one in taken if one.finish != "suspended"}
    completions |= land(flight, 3)
    for _, one in taken:
        if one.finish == "suspended":
            begun = replace(requests[1], n=1, first=one.sample, begun=tuple(one.token_ids), turns=tuple(one.turns))
            flight.add(10 + one.sample, begun)
    completions |= land(flight)
    for ticket, one in taken:
        if one.finish == "suspended":
            rest = completions.pop((10 + one.sample, one.sample))
            completions[ticket, one.sample] = replace(rest, token_ids=one.token_ids + rest.token_ids)
    got = [[(completions[t, k].token_ids, completions[t, k].finish) for k in range(2)] for t in range(3)]
    assert got == want


@pytest.mark.parametrize("changes", [(3,), (1, 2, 9)])
def test_trap_an_episode_goes_on_under_new_weights_and_every_token_tells_which(tiny_policy, changes):
    policies = [other(tiny_policy, seed) for seed in range(len(changes) + 1)]
    mine = other(tiny_policy, 0)
    engine = Engine(mine)
    episodes = Episodes(engine, Echo(), tokenizer=mine.tokenizer, max_turns=4)
    flight, completions, done = episodes.flight(replace(SAMPLING, processor=closing(mine, 0.15))), {}, 0
    requests = asked(mine, ["ab", "c", "d"])
    for ticket, request in enumerate(requests):
        flight.add(ticket, request)
    for version, at in enumerate(changes, 1):
        completions |= land(flight, at - done)
        done = at
        mine.model.load_state_dict(policies[version].model.state_dict())
        episodes.sync(version)
    completions |= land(flight)
    several = 0
    for (ticket, _), got in completions.items():
        spans = [v for v, n in got.versions for _ in range(n)]
        assert len(spans) == len(got.token_ids)
        assert spans == sorted(spans)
        several += len(set(spans)) > 1
        at = 0
        for turn in [*got.turns, Turn(len(got.token_ids))]:
            for place in range(at, min(at + turn.sampled, len(spans))):
                policy = policies[spans[place]]
                ids = got.token_ids[: place + 1]
                with torch.no_grad():
                    logits = policy.model(torch.tensor([[*requests[ticket].prompt_ids, *ids]])).logits[0, -2].float()
                lp = closing(policy, 0.15)(logits[None], None).log_softmax(-1)[0, ids[-1]]
                assert got.logprobs[place] == pytest.approx(float(lp), abs=2e-5)
            # What was observed is noted under the version of the turn that it answers.
            end = at + turn.sampled
            assert not turn.observed or set(spans[end : end + turn.observed]) == {spans[end - 1]}
            at = end + turn.observed
    assert several >= 3
