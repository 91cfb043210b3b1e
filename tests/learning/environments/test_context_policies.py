"""Context policies: what the model sees at each turn, what is sampled there, and what is trained on."""

from dataclasses import replace

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.batch.columns import broadcast_to_tokens, of_rewards
from learning.batch.micro_batches import split_micro_batches, statistics_of
from learning.data.chat import decode, encode_prompt
from learning.environments import context_policies
from learning.environments.episodes import Episodes
from learning.environments.protocol import NextContext, Outcome, PastTurn
from learning.generation.engines.torch import Engine
from learning.lookup import bind
from learning.models.packed import choose_forward
from learning.rewards.environment import earned
from learning.samples.engine_protocol import Request, Sampling
from learning.samples.sample import Sample, SampleRequest, transcript
from learning.sampling.sampler import Sampler
from schemas.errors import StepError
from schemas.stages.rl import Rl
from schemas.use import ContextUse

ASK = [{"role": "system", "content": "s"}, {"role": "user", "content": "ab"}]
ROW = {"id": "r", "family": "f", "prompt": [{"role": "user", "content": "ab"}], "answer": ""}
ONE, TWO, THREE = PastTurn("t1", "o1"), PastTurn("t2", "o2"), PastTurn("t3", "o3")
TEMPERATURE = 0.8


def pairs(messages):
    return None if messages is None else [(message["role"], message["content"]) for message in messages]


def test_a_window_shows_the_problem_and_the_last_turns():
    assert context_policies.window(ASK, [ONE, TWO], keep=2) == NextContext()
    assert pairs(context_policies.window(ASK, [ONE, TWO, THREE], keep=2).messages) == [
        ("system", "s"),
        ("user", "ab"),
        ("assistant", "t2"),
        ("user", "o2"),
        ("assistant", "t3"),
        ("user", "o3"),
    ]


def test_the_newest_observation_is_shown_and_earlier_ones_are_placeholders():
    assert context_policies.newest_observation(ASK, [ONE]) == NextContext()
    then = context_policies.newest_observation(ASK, [ONE, TWO, THREE], placeholder="-")
    assert pairs(then.messages)[2:] == [
        ("assistant", "t1"),
        ("user", "-"),
        ("assistant", "t2"),
        ("user", "-"),
        ("assistant", "t3"),
        ("user", "o3"),
    ]


def test_a_state_is_the_tagged_part_that_was_written_last():
    turns = [PastTurn("<m>a</m><m>b</m> go", "o1"), PastTurn("no state", "o2")]
    assert pairs(context_policies.state(ASK, turns, tag="m").messages) == [("system", "s"), ("user", "ab\nb\no2")]
    assert pairs(context_policies.state(ASK, turns).messages)[-1] == ("user", "ab\nno state\no2")
    assert pairs(context_policies.state(ASK, [ONE], tag="m", text="{memory}|{observation}").messages)[-1] == (
        "user",
        "|o1",
    )


def test_a_memory_is_asked_for_after_each_answer_and_shown_to_the_next_action():
    first = context_policies.memory(ASK, [ONE], ask="{question};{memory};{observation}", text="{question}={memory}")
    assert (pairs(first.messages)[-1], first.asks) == (("user", "ab;;o1"), "memory")
    written = [ONE, PastTurn("m1", is_memory=True)]
    then = context_policies.memory(ASK, written, text="{question}={memory}")
    assert (pairs(then.messages)[-1], then.asks) == (("user", "ab=m1"), "action")
    again = context_policies.memory(ASK, [*written, TWO], ask="{memory};{observation}")
    assert (pairs(again.messages)[-1], again.asks) == (("user", "m1;o2"), "memory")


def test_a_summary_replaces_a_context_that_has_reached_its_budget():
    assert context_policies.summary(ASK, [ONE], 9, budget=10) == NextContext()
    asked = context_policies.summary(ASK, [ONE, TWO], 10, budget=10, ask="{observation} sum")
    assert asked == NextContext(None, "o2 sum", "memory")
    then = context_policies.summary(ASK, [ONE, TWO, PastTurn("m", is_memory=True)], 40, budget=10)
    assert pairs(then.messages) == [("system", "s"), ("user", "ab\nSummary: m\no2")]


def test_a_full_context_after_the_last_summary_ends_the_episode():
    turns = [ONE, PastTurn("m", is_memory=True), TWO]
    assert context_policies.summary(ASK, turns, 10, budget=10, limit=1) == NextContext(ends=True)
    assert context_policies.summary(ASK, turns, 9, budget=10, limit=1) == NextContext()
    assert context_policies.summary(ASK, turns, 10, budget=10, limit=2).asks == "memory"
    # The last summary itself is still used.
    assert context_policies.summary(ASK, turns[:2], 10, budget=10, limit=1).messages is not None
    assert context_policies.summary(ASK, [ONE], 10, budget=10, limit=0) == NextContext(ends=True)


def test_text_of_the_model_is_never_read_as_a_place():
    turns = [PastTurn("{observation}{question}", "{memory}")]
    assert pairs(context_policies.state(ASK, turns, text="{memory}|{observation}").messages)[-1] == (
        "user",
        "{observation}{question}|{memory}",
    )


class Rating:
    """Answers with growing text, and ends after four actions; remembers the actions of each episode."""

    def __init__(self, answers=("x", "x<eos>y", "z")):
        self.answers, self.heard = answers, {}

    def begin(self, row, seed):
        heard = self.heard[seed] = []

        class Rated:
            def step(own, action):
                heard.append(action)
                text = self.answers[min(len(heard), len(self.answers)) - 1]
                return Outcome(text, len(heard) == 4, len(action) / 4, 0.5)

        return Rated()


def short(logits_BV, place_B):
    """Turns end soon."""
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = logits_BV.logsumexp(-1) - 1.0
    return logits_BV


SUMMARY = {"use": "summary", "budget": 24, "ask": "{observation}!", "text": "{question}{memory}{observation}"}
MEMORY = {"use": "memory", "ask": "{question}{memory}{observation}", "text": "{question}{memory}"}
POLICIES = {
    "window": {"use": "window", "keep": 1},
    "newest_observation": {"use": "newest_observation", "placeholder": "-"},
    "state": {"use": "state", "text": "{question}{memory}{observation}"},
    "memory": MEMORY,
    "summary": SUMMARY,
}


def play(policy, use, *, process=short, most=40, environment=None, **how):
    episodes = Episodes(
        Engine(policy),
        environment or Rating(),
        tokenizer=policy.tokenizer,
        context=bind(ContextUse.model_validate(use), "env.context"),
        max_length=policy.max_length,
        **how,
    )
    return Sampler(episodes, policy, Sampling(TEMPERATURE, most, processor=process), seed=3, step=2)


def sample_rated(policy, use, n=6, **how):
    samples = play(policy, use, **how).sample([SampleRequest(ROW, n), SampleRequest({**ROW, "id": "s"}, n)])
    for sample, value in zip(samples, earned(samples), strict=True):
        sample.scores, sample.reward = {"environment.earned": value}, value
    return samples


def list_turns(policy, sample):
    """The model's turns: the context before it, its ids, its text, and whether it is a memory."""
    rows, at, start, prompt, is_memory = [], 0, 0, sample.prompt_ids, False
    ids = sample.completion_ids
    for turn in sample.turns:
        own = ids[at : at + turn.sampled]
        rows.append(([*prompt, *ids[start:at]], own, decode(policy.tokenizer, own), is_memory, at))
        at += turn.sampled
        if turn.rebuilt:
            start, prompt = at + turn.observed, ids[at : at + turn.observed]
        at += turn.observed
        is_memory = turn.asks == "memory"
    if at < len(ids):
        rows.append(([*prompt, *ids[start:at]], ids[at:], decode(policy.tokenizer, ids[at:]), is_memory, at))
    return rows


@pytest.mark.parametrize("name", POLICIES)
def test_every_turn_is_sampled_in_the_context_that_the_policy_gave(tiny_policy, name):
    """The policy, called by hand on what happened, gives each context; a plain forward gives its log-probabilities."""
    use, rebuilt, memories = POLICIES[name], 0, 0
    function = getattr(context_policies, name)
    options = {key: value for key, value in use.items() if key != "use"}
    for sample in sample_rated(tiny_policy, use):
        past, context = [], None
        for number, (before, ids, text, is_memory, at) in enumerate(list_turns(tiny_policy, sample)):
            if number and sample.turns[number - 1].rebuilt:
                supplied = [sample.row["prompt"], past] + ([len(context)] if name == "summary" else [])
                then = function(*supplied, **options)
                assert before == encode_prompt(tiny_policy.tokenizer, then.messages)
                assert (then.asks == "memory") == is_memory
                rebuilt += 1
            with torch.no_grad():
                logits_LV = tiny_policy.model(torch.tensor([[*before, *ids]])).logits[0, len(before) - 1 : -1].float()
            logits_LV = short(logits_LV / TEMPERATURE, None)
            want = logits_LV.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
            assert sample.logprobs[at : at + len(ids)] == pytest.approx(want.tolist(), abs=1e-5)
            actions = sum(not turn.is_memory for turn in past)
            observation = "" if is_memory else ("x", "x<eos>y", "z")[min(actions, 2)]
            past.append(PastTurn(text, observation, is_memory))
            context, memories = [*before, *ids], memories + is_memory
        assert sample.num_turns == sum(not turn.is_memory for turn in past) <= 4
    assert rebuilt >= 8
    assert bool(memories) == (name in ("memory", "summary"))


@pytest.mark.parametrize("name", POLICIES)
def test_the_environment_receives_the_actions_and_no_memory(tiny_policy, name):
    environment = Rating()
    samples = sample_rated(tiny_policy, POLICIES[name], environment=environment)
    want = [
        [
            text
            for number, (*_, text, is_memory, _) in enumerate(list_turns(tiny_policy, sample))
            if not is_memory and number < len(sample.turns)
        ]
        for sample in samples
    ]
    assert sorted(want) == sorted(environment.heard.values())


def test_two_equal_contexts_of_an_episode_have_different_random_numbers(tiny_policy):
    """All contexts of these episodes are equal, and so would be all turns under the same random numbers."""
    use = {"use": "state", "text": "{question}"}
    samples = sample_rated(tiny_policy, use, n=12)
    turns = [[tuple(ids) for _, ids, *_ in list_turns(tiny_policy, sample)] for sample in samples]
    contexts = {tuple(before) for sample in samples for before, *_ in list_turns(tiny_policy, sample)}
    assert len(contexts) == 1
    assert sum(len(of) > 2 for of in turns) >= 6
    assert all(len(set(of)) > 1 for of in turns if len(of) > 2 and max(map(len, of)) > 2)


@pytest.mark.parametrize("name", ["memory", "summary", "window"])
@pytest.mark.parametrize("window", [1, 4, 11])
def test_an_episode_that_is_suspended_anywhere_continues_with_the_same_contexts(tiny_policy, name, window):
    whole = play(tiny_policy, POLICIES[name], steps_per_answer=0)
    request = Request(encode_prompt(tiny_policy.tokenizer, ROW["prompt"]), 4, 7, row=ROW)
    (want,) = whole.engine.generate([request], whole.sampling)
    for number, one in enumerate(want):
        begun, turns, logprobs, finish, calls = (), (), [], "suspended", 0
        while finish == "suspended":
            part = play(tiny_policy, POLICIES[name], steps_per_answer=0)
            rest = replace(request, n=1, first=number, begun=begun, turns=turns)
            ((made,),) = part.engine.generate([rest], replace(part.sampling, window=window))
            begun, turns, finish = (*begun, *made.token_ids), (*turns, *made.turns), made.finish
            logprobs, calls = logprobs + made.logprobs, calls + 1
        assert calls > 1
        assert (list(begun), finish) == (one.token_ids, one.finish)
        assert [replace(turn, seconds=0) for turn in turns] == [replace(turn, seconds=0) for turn in one.turns]
        assert logprobs == pytest.approx(one.logprobs, abs=1e-5)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_an_episode_has_no_more_summaries_than_the_limit_and_is_then_truncated(tiny_policy, limit):
    """The same random numbers without a limit: those episodes are the same up to the context that was too much."""
    free = sample_rated(tiny_policy, {**SUMMARY, "budget": 1}, n=4)
    held = sample_rated(tiny_policy, {**SUMMARY, "budget": 1, "limit": limit}, n=4)
    numbers = [sum(turn.asks == "memory" for turn in sample.turns) for sample in free]
    assert max(numbers) > 2
    for sample, other, number in zip(held, free, numbers, strict=True):
        size = len(sample.completion_ids)
        assert sample.completion_ids == other.completion_ids[:size]
        assert sum(turn.asks == "memory" for turn in sample.turns) == min(number, limit)
        assert (size == len(other.completion_ids)) == (number <= limit)
        assert sample.finish == ("length" if number > limit else other.finish)


def test_a_context_without_room_for_a_completion_ends_the_episode(tiny_policy):
    samples = sample_rated(tiny_policy, {"use": "state", "text": "{question}" * 30}, most=70)
    assert {sample.finish for sample in samples} == {"length"}
    assert all(len(sample.turns) <= 1 and not any(turn.observed for turn in sample.turns) for sample in samples)


def test_a_policy_that_returns_anything_else_is_named(tiny_policy, monkeypatch):
    monkeypatch.setattr(context_policies, "window", lambda prompt, turns: "x")
    with pytest.raises(StepError, match=r"env.context window: returned str; return a NextContext"):
        sample_rated(tiny_policy, {"use": "window"})
    monkeypatch.setattr(context_policies, "window", lambda prompt, turns: NextContext(ASK, asks="memory"))
    with pytest.raises(StepError, match="after a memory, return `messages` and ask for an action"):
        sample_rated(tiny_policy, {"use": "window"})


def make_algorithm():
    slots = {"advantage": ["center", "scale"], "ratio": "token", "policy_loss": "clipped"}
    base = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["environment.earned"], "max_steps": 1}
    stage = Rl.model_validate({**base, **slots, "loss_aggregation": "sequence_mean", "env": "guess"})
    return bind_algorithm(stage, {})


@pytest.mark.parametrize("name", ["memory", "summary"])
def test_the_loss_and_its_gradient_count_episodes_and_not_contexts(tiny_policy, name):
    """The mean over all sampled tokens of an episode, each in its own context, and then over the episodes."""
    samples = sample_rated(tiny_policy, POLICIES[name], n=6)
    assert sum(len(sample.contexts) > 1 for sample in samples) >= 3
    for sample in samples:
        flags = enumerate(zip(sample.logprobs, sample.own, strict=True))
        sample.logprobs = [lp - (0.1 * (i % 4) - 0.1 if own else 0.0) for i, (lp, own) in flags]
    algorithm, model = make_algorithm(), tiny_policy.model.double()
    batch = with_dropped(forest(samples), False)
    batch = with_weights(algorithm, with_advantages(algorithm, batch, 0, states={}, rows=[]), 0, 40)
    batch = batch.with_tokens(lp_prox=batch.sampled("lp_behav"))
    choose_forward(model)
    loss, _ = micro_loss(algorithm, model, batch, step=0, temperature=TEMPERATURE)
    loss.backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    total = 0.0
    for sample in samples:
        of = torch.tensor([s.reward for s in samples if s.group == sample.group], dtype=torch.float64)
        advantage = (sample.reward - of.mean()) / (of.std() + 1e-4)
        losses = []
        for before, ids, *_, at in list_turns(tiny_policy, sample):
            logp = (model(torch.tensor([[*before, *ids]])).logits[0, len(before) - 1 : -1] / TEMPERATURE).log_softmax(
                -1
            )
            lp = logp.gather(1, torch.tensor(ids)[:, None])[:, 0]
            ratio = (lp - torch.tensor(sample.logprobs[at : at + len(ids)], dtype=torch.float64)).exp()
            losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
        total = total + torch.cat(losses).mean() / len(samples)
    assert float(loss.detach()) == pytest.approx(float(total.detach()), rel=1e-9)
    total.backward()
    for got, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad, atol=1e-8, rtol=1e-5)


def test_a_batch_keeps_all_contexts_of_an_episode_when_it_is_split(tiny_policy):
    samples = sample_rated(tiny_policy, MEMORY)
    batch = forest(samples)
    assert batch.num_paths == len(samples)
    assert batch.earlier.keys() == {path for path, sample in enumerate(samples) if len(sample.contexts) > 1}
    assert batch.path_T.bincount().tolist() == [sum(sample.own) for sample in samples]
    how = {"temperature": TEMPERATURE, "max_tokens": 10**6}
    whole = statistics_of(batch, tiny_policy.model, ("lp",), **how)["lp"]
    parts = split_micro_batches(batch, 60)
    assert len(parts) > 4
    assert sum(len(part.sampled_T) for part in parts) == len(batch.sampled_T)
    small = statistics_of(batch, tiny_policy.model, ("lp",), **{**how, "max_tokens": 60})["lp"]
    torch.testing.assert_close(small, whole, atol=1e-5, rtol=0)
    alone = batch.take([3])
    assert sorted(alone.segments) == sorted(forest([samples[3]]).segments)
    batch = forest([replace(sample, scores={"e": 1.0}, reward=float(i)) for i, sample in enumerate(samples)])
    lifted = broadcast_to_tokens(of_rewards(batch), batch).values_X
    assert lifted.tolist() == batch.path_T.tolist()


def test_a_sample_with_contexts_is_restored_and_shown(tiny_policy):
    sample = next(s for s in sample_rated(tiny_policy, MEMORY) if len(s.contexts) > 2)
    assert Sample.from_json(sample.to_json()) == sample
    shown = transcript(lambda ids: decode(tiny_policy.tokenizer, ids), sample.completion_ids, sample.turns)
    assert shown.count("⇒") == len(sample.contexts) - 1
