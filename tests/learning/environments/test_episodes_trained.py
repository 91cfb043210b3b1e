"""What is trained on of an episode: what the model sampled, under all that came before it, and nothing else."""

from dataclasses import replace

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView
from learning.data.chat import decode, encode_prompt, encode_reply
from learning.data.tokenizers import characters
from learning.environments.episodes import Episodes
from learning.environments.protocol import Outcome
from learning.generation.engines.torch import Engine
from learning.models.packed import choose_forward
from learning.rewards.environment import earned
from learning.samples.engine_protocol import Sampling, Turn
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.pending_samples import Pending, advance, begin, build_sample, start
from learning.sampling.sampler import Sampler
from learning.toy_tasks.environments.guess import Environment as Guess
from schemas.errors import StepError
from schemas.stages.rl import Rl

TEMPERATURE = 0.8
ROW = {"id": "r", "family": "f", "prompt": [{"role": "user", "content": "ab"}], "answer": ""}


class Rating:
    """Earns what the text is worth; three turns."""

    def begin(self, row, seed):
        return Rated()


class Rated:
    def __init__(self):
        self.said = 0

    def step(self, action):
        self.said += 1
        return Outcome("xyz"[: self.said], self.said == 3, len(action) / 4, 0.5 * self.said)


def short(logits_BV, place_B):
    logits_BV = logits_BV.clone()
    logits_BV[:, 1] = logits_BV.logsumexp(-1) - 1.0
    return logits_BV


def sampler(policy, *, process=short, most=40, **how):
    episodes = Episodes(Engine(policy), Rating(), tokenizer=policy.tokenizer, **how)
    return Sampler(episodes, policy, Sampling(TEMPERATURE, most, processor=process), seed=3, step=2)


def rated(policy, n=6, **how):
    samples = sampler(policy, **how).sample([SampleRequest(ROW, n), SampleRequest({**ROW, "id": "s"}, n)])
    for sample, value in zip(samples, earned(samples), strict=True):
        sample.scores, sample.reward = {"environment.earned": value}, value
    return samples


def test_a_sample_tells_its_turns_and_its_last_text(tiny_policy):
    several = 0
    for sample in rated(tiny_policy):
        ids, turns = sample.completion_ids, sample.turns
        assert sample.versions == [2] * len(ids)
        assert len(sample.own) == len(sample.logprobs) == len(ids)
        assert sample.own.count(False) == sum(turn.observed for turn in turns)
        last = max([0, *(i + 1 for i, own in enumerate(sample.own) if not own)])
        assert sample.text == decode(tiny_policy.tokenizer, ids[last:])
        assert sample.num_turns == len(turns) + (last < len(ids) and bool(not turns or turns[-1].observed))
        assert Sample.from_json(sample.to_json()) == sample
        several += len(turns) > 1
    assert several > 6


def test_columns_of_turns_and_their_seconds(tiny_policy):
    samples = rated(tiny_policy)
    batch = forest(samples)
    columns = ColumnView(batch)
    assert columns["turns_P"].tolist() == [sample.num_turns for sample in samples]
    for path, sample in enumerate(samples):
        mine_T = columns["path_T"] == path
        want = [i for i, turn in enumerate(sample.turns) for _ in range(turn.sampled)]
        want += [len(sample.turns)] * (sum(sample.own) - len(want))
        assert columns["turn_T"][mine_T].tolist() == want
        assert columns["seconds_T"][mine_T].tolist() == [0.5 * (i + 1) * (i < len(sample.turns)) for i in want]
        assert columns["length_T"][mine_T].tolist() == [sum(sample.own)] * len(want)


def batch_of(samples, algorithm):
    batch = with_dropped(forest(samples), False)
    return with_weights(algorithm, with_advantages(algorithm, batch, 0, states={}, rows=[]), 0, 40)


def test_the_loss_is_the_formula_over_sampled_tokens_and_observed_ones_get_no_gradient(
    tiny_policy,
):
    samples = rated(tiny_policy, process=None, most=60)
    assert any(turn.observed for sample in samples for turn in sample.turns)
    # Samples of slightly older weights, so that ratios are not 1.
    for sample in samples:
        pairs = enumerate(zip(sample.logprobs, sample.own, strict=True))
        sample.logprobs = [lp - (0.1 * (i % 4) - 0.1 if own else 0.0) for i, (lp, own) in pairs]
    slots = {
        "advantage": ["center", "scale"],
        "ratio": "token",
        "policy_loss": "clipped",
        "loss_aggregation": "sequence_mean",
    }
    base = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["environment.earned"], "max_steps": 1}
    algorithm = bind_algorithm(Rl.model_validate({**base, **slots, "env": "guess"}), {})
    model, kept = tiny_policy.model.double(), []
    batch = batch_of(samples, algorithm)
    batch = batch.with_tokens(lp_prox=batch.sampled("lp_behav"))

    def keep(_, given, out):
        out.last_hidden_state.retain_grad()
        kept.append(out.last_hidden_state)

    choose_forward(model)  # the check has forward passes of its own
    hook = model.base_model.register_forward_hook(keep)
    loss, _ = micro_loss(algorithm, model, batch, step=0, temperature=TEMPERATURE)
    loss.backward()
    hook.remove()
    ours = [p.grad.clone() for p in model.parameters()]
    # Rows of the forward pass that predict a token nobody sampled get exactly nothing.
    source_M, learn_M = batch.packed.source_M, batch.tokens["learn"]
    learnt = set(source_M[learn_M].tolist())
    silent = sorted(set(range(len(learn_M))) - learnt)
    grad_MC = kept[0].grad[0]
    assert len(silent) > sum(sample.own.count(False) for sample in samples) > 10
    assert not grad_MC[silent].any()
    assert float(grad_MC[sorted(learnt)].abs().max()) > 1e-5
    # The formula, one conversation at a time.
    model.zero_grad()
    total, groups = 0.0, {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample.reward)
    for sample in samples:
        of = torch.tensor(groups[sample.group], dtype=torch.float64)
        advantage = (sample.reward - of.mean()) / (of.std() + 1e-4)
        ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
        logp = (model(ids).logits[0, len(sample.prompt_ids) - 1 : -1] / TEMPERATURE).log_softmax(-1)
        lp = logp.gather(1, torch.tensor(sample.completion_ids)[:, None])[:, 0]
        ratio = (lp - torch.tensor(sample.logprobs, dtype=torch.float64)).exp()
        of_token = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        own = torch.tensor(sample.own)
        total = total + of_token[own].mean() / len(samples)
    assert float(loss.detach()) == pytest.approx(float(total.detach()), rel=1e-9)
    total.backward()
    for got, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(got, parameter.grad, atol=1e-9, rtol=1e-5)


def test_a_beginning_that_was_given_belongs_to_the_first_turn_and_is_not_trained_on(tiny_policy):
    """Given by the drive (it counts in the length) or by the ask (a part of the prompt): the environment sees it."""
    heard = []

    class Hearing(Rating):
        def begin(self, row, seed):
            played = Rated()
            return type("H", (), {"step": lambda self, action: heard.append(action) or played.step(action)})()

    given = tiny_policy.tokenizer.encode("q", add_special_tokens=False)
    one = sampler(tiny_policy)
    one.engine.environment = Hearing()
    pool = start([SampleRequest(ROW, 3)], one)
    for member in pool:
        begin(member, given, source="reset")
    while any(member.finish == "suspended" for member in pool):
        advance(pool, one, window=6)
        pool = [Pending.from_json(member.to_json()) for member in pool]
    samples = [build_sample(member, 0, one) for member in pool]
    samples += sampler_of(one).sample([SampleRequest(ROW, 3, begin=tuple(given))])
    assert all(text.startswith("q") for text in heard if text in {t.text for t in samples if t.num_turns == 1})
    for sample in samples:
        assert sample.completion_ids[0] == given[0]
        assert sample.given == 1
        assert sum(t.sampled + t.observed for t in sample.turns) <= len(sample.completion_ids) - 1
        places = [1 + sum(t.sampled + t.observed for t in sample.turns[:i]) for i in range(len(sample.turns))]
        ends = [at + turn.sampled - 1 for at, turn in zip(places, sample.turns, strict=True)]
        assert all(sample.completion_ids[end] == tiny_policy.tokenizer.eos_token_id for end in ends)
    batch = forest(samples)
    assert int(batch.tokens["learn"].sum()) == sum(sum(sample.own) for sample in samples)
    assert any(text.startswith("q") for text in heard)


def sampler_of(one):
    return replace(one, groups=5)


TEMPLATES = {
    "ours": characters().chat_template,
    "chatml": (
        "{% if messages[0]['role'] != 'system' %}<system>be brief<eos>\n{% endif %}{% for m in messages %}"
        "{{ '<user>' + m['role'] + '\n' + m['content'] + '<eos>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<user>assistant\n{% endif %}"
    ),
    "spaced": (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
        "{{ '[' + m['content'].strip() + ']' }}{% else %}{{ m['content'] + '<eos>' }}{% endif %}{% endfor %}"
    ),
    "unclosed": (
        "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["higher", "", " a<eos>b ", "<assistant>4<user>"])
def test_an_answer_is_laid_out_as_the_template_lays_out_a_conversation(name, text):
    tokenizer = characters(chat_template=TEMPLATES[name])
    prompt, answer = [{"role": "user", "content": "guess"}], "12"
    whole = [*prompt, {"role": "assistant", "content": answer}, {"role": "user", "content": text}]
    first = encode_prompt(tokenizer, prompt)
    turn = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    got, want = first + turn + encode_reply(tokenizer, text), encode_prompt(tokenizer, whole)
    if name == "unclosed":
        got.remove(tokenizer.eos_token_id)  # what a model ends its turn with is there, though the template has none
    assert got == want


def test_a_template_that_forgets_earlier_turns_is_refused():
    last = "{{ '<user>' + messages[-1]['content'] + '<assistant>' }}"
    with pytest.raises(StepError, match="leaves out earlier turns"):
        encode_reply(characters(chat_template=last), "x")


def test_guess_says_higher_and_lower_until_it_is_found():
    game = Guess(cost=0.25).begin({"id": "g", "answer": "5"}, 0)
    assert game.step("3") == Outcome("higher")
    assert game.step(" 7") == Outcome("lower")
    assert game.step("five") == Outcome("a number?", ok=False)
    assert game.step("5") == Outcome(done=True, reward=0.25)
    with pytest.raises(StepError, match="not an integer"):
        Guess().begin({"id": "g", "answer": "x"}, 0)


def test_what_a_turn_earned_is_summed():
    sample = Sample(ROW, 0, "policy", [], [], [], "stop", "", turns=[Turn(2, 3, 0.5), Turn(1, 0, 0.25)])
    assert earned([sample, replace(sample, turns=[])]) == [0.75, 0.0]
