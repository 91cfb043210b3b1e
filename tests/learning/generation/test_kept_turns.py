"""A turn of an episode computes only what is new to it, with the numbers of the whole conversation."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Lfm2Config

from learning.data.chat import encode_prompt
from learning.environments.episodes import Episodes
from learning.environments.protocol import Outcome
from learning.generation.engines import flight, running, slot_attention
from learning.generation.engines.kept_turns import KeptTurn, KeptTurns, extend
from learning.generation.engines.slot_attention import extends_turns, use_slot_attention
from learning.generation.engines.slots import prefill
from learning.generation.engines.torch import Engine
from learning.samples.engine_protocol import Request, Sampling
from tests.learning.generation.slot_models import FAMILIES, SHAPE, make_model

TURNS = 4


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_values_are_those_of_the_whole_sequence(family):
    """Kept and new parts of different lengths, longer than the window of 9."""
    model = make_model(family)
    assert extends_turns(model)
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, 40, (n,), generator=generator).tolist() for n in (31, 12, 20)]
    firsts = (17, 11, 1)
    with torch.inference_mode(), use_slot_attention(model):
        whole = [prefill(model, torch.tensor([ids])).pairs for ids in rows]
        kept = [
            KeptTurn(ids[:n], {layer: (k[0, :, :n], v[0, :, :n]) for layer, (k, v) in pairs.items()})
            for ids, n, pairs in zip(rows, firsts, whole, strict=True)
        ]
        made = extend(model, kept, [ids[n:] for ids, n in zip(rows, firsts, strict=True)]).pairs
    # Padding of the first row, whose kept part is the longest, adds no columns.
    assert {pair.shape[2] for of_layer in made.values() for pair in of_layer} == {31}
    for layer in range(2):
        for row, ids in enumerate(rows):
            for got, want in zip(made[layer], whole[row][layer], strict=True):
                torch.testing.assert_close(got[row, :, : len(ids)], want[0], atol=1e-5, rtol=0)


class Talk:
    """Answers with some letters; the last of TURNS turns ends the episode."""

    def begin(self, row, seed):
        self.seen = 0

        class Played:
            turns = 0

            def step(self, action):
                self.turns += 1
                return Outcome("abcdefg"[: 3 + seed % 4], self.turns == TURNS, 1.0)

        return Played()


def ends_soon(policy):
    def process(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        logits_BV[:, policy.tokenizer.eos_token_id] = logits_BV.logsumexp(-1) - 1.0
        return logits_BV

    return process


def play(policy, engine=None, between=None, **how):
    """Episodes of two problems, three each; `between` is called before every answer."""
    world = Talk()
    if between is not None:
        begin = world.begin

        def begun(row, seed):
            played = begin(row, seed)
            step = played.step
            played.step = lambda action: between() or step(action)
            return played

        world.begin = begun
    rows = [{"id": text, "prompt": [{"role": "user", "content": text}]} for text in ("what now", "hi")]
    requests = [
        Request(encode_prompt(policy.tokenizer, row["prompt"]), 3, 4 + i, row=row) for i, row in enumerate(rows)
    ]
    episodes = Episodes(engine or Engine(policy), world, tokenizer=policy.tokenizer, max_turns=TURNS + 1, **how)
    made = episodes.generate(requests, Sampling(1.0, 100, processor=ends_soon(policy)))
    return requests, made


@pytest.fixture
def computed(monkeypatch):
    """The numbers of tokens that forwards over several tokens computed: prompts, and parts of conversations."""
    counts = {"prompts": [], "extensions": []}

    def counted_prefill(model, ids_RT):
        counts["prompts"].append(int(ids_RT.numel()))
        return prefill(model, ids_RT)

    def counted_extend(model, kept, new):
        counts["extensions"].append(sum(map(len, new)))
        return extend(model, kept, new)

    monkeypatch.setattr(running, "prefill", counted_prefill)
    monkeypatch.setattr(flight, "extend", counted_extend)
    return counts


def test_a_turn_computes_its_new_tokens_only(tiny_policy, computed):
    requests, made = play(tiny_policy, order="together")
    answered = [(g, [turn for turn in g.turns if turn.observed]) for of in made for g in of]
    assert sum(len(turns) for _, turns in answered) >= 12
    # A forward takes the answer's tokens and the turn's last one, which had not been computed; the sampling of the next
    # turn begins with the last token of the answer.
    assert sum(computed["extensions"]) == sum(turn.observed for _, turns in answered for turn in turns)
    width = max(len(request.prompt_ids) for request in requests) - 1
    assert computed["prompts"] == [len(requests) * width]


def test_completions_are_those_of_computing_every_turn_anew(tiny_policy, computed, monkeypatch):
    kept = play(tiny_policy)[1]
    assert computed["extensions"]
    computed["extensions"].clear()
    monkeypatch.setattr(flight, "extends_turns", lambda model: False)
    anew = play(tiny_policy)[1]
    assert not computed["extensions"]
    for of, others in zip(kept, anew, strict=True):
        assert [g.token_ids for g in of] == [g.token_ids for g in others]
        for one, other in zip(of, others, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


class Seesaw(Talk):
    """Answers one problem with 70 letters and then 2, the other with 2 and then 70."""

    def begin(self, row, seed):
        class Played:
            turns = 0

            def step(self, action):
                self.turns += 1
                is_long = (row["id"] == "hi") == (self.turns == 1)
                return Outcome("ab" * 35 if is_long else "ab", self.turns == 3, 1.0)

        return Played()


def test_a_long_answer_beside_a_long_episode_fits_where_each_does(tiny_policy, computed):
    """Columns of all rows end at the limit of a completion: 100 tokens, of which each episode needs under 95."""
    rows = [{"id": text, "prompt": [{"role": "user", "content": text}]} for text in ("what now", "hi")]
    requests = [
        Request(encode_prompt(tiny_policy.tokenizer, row["prompt"]), 1, 4 + i, row=row) for i, row in enumerate(rows)
    ]
    engine = Engine(tiny_policy)
    episodes = Episodes(engine, Seesaw(), tokenizer=tiny_policy.tokenizer, max_turns=4, order="together")
    (one,), (other,) = episodes.generate(requests, Sampling(1.0, 100, processor=ends_soon(tiny_policy)))
    assert [turn.observed for turn in one.turns][:2] < [turn.observed for turn in other.turns][:2]
    assert len(computed["extensions"]) >= 2
    assert max(map(len, (one.token_ids, other.token_ids))) <= 100


def test_new_weights_leave_nothing_of_the_old(tiny_policy, computed):
    engine, changed = Engine(tiny_policy), []

    def change():
        if not changed:
            changed.append(True)
            with torch.no_grad():
                for parameter in tiny_policy.model.parameters():
                    parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
            engine.sync(1)

    requests, made = play(tiny_policy, engine, between=change, order="together", workers=1)
    checked = 0
    for request, of in zip(requests, made, strict=True):
        for generation in of:
            ids = [*request.prompt_ids, *generation.token_ids]
            with torch.no_grad():
                logits = tiny_policy.model(torch.tensor([ids])).logits[0, len(request.prompt_ids) - 1 : -1].float()
            logp = ends_soon(tiny_policy)(logits, None).log_softmax(-1)
            want = logp.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0].tolist()
            at = 0
            for turn in generation.turns:
                if at:  # turns after the first have the new weights
                    assert generation.logprobs[at : at + turn.sampled] == pytest.approx(
                        want[at : at + turn.sampled], abs=2e-5
                    )
                    checked += 1
                at += turn.sampled + turn.observed
    assert checked >= 12


def test_only_what_continues_the_same_tokens_is_used():
    turns = KeptTurns(2)
    for seed in range(3):
        turns.keep((seed, 0), KeptTurn([1, 2, seed], {}))
    assert turns.take((0, 0), [1, 2, 0, 4]) is None, "the oldest of three was dropped"
    assert turns.take((1, 0), [1, 2, 9, 4]) is None, "the context was rebuilt"
    assert turns.take((1, 0), [1, 2, 1, 4]) is None, "taken once"
    assert turns.take((2, 0), [1, 2, 2, 4]).ids == [1, 2, 2]
    turns.keep((2, 0), KeptTurn([1, 2], {}))
    assert turns.take((2, 0), [1, 2]) is None, "there is nothing new"
    turns.keep((2, 0), KeptTurn([1, 2], {}))
    turns.clear()
    assert turns.take((2, 0), [1, 2, 3]) is None


def test_wrong_attention_to_kept_turns_is_found(monkeypatch):
    right = slot_attention._attend_extension
    monkeypatch.setattr(slot_attention, "_attend_extension", lambda *given: right(*given) * 1.001)
    model = make_model("plain")
    assert not extends_turns(model)
    assert not slot_attention.explain_slot_misfit(model)


def test_models_with_states_compute_all_tokens():
    torch.manual_seed(0)
    more = {"layer_types": ["conv", "full_attention"]}
    model = AutoModelForCausalLM.from_config(Lfm2Config(**{k: v for k, v in SHAPE.items() if k != "head_dim"}, **more))
    assert not extends_turns(model.eval())
