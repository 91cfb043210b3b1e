"""What practice makes of rollouts: journals, rankings, the rule that names the step that differs."""

import pytest

from learning.agents.extractors import add_experience, first_difference, format_transcript
from learning.agents.practising import extract_experiences, rank_rollouts, sample_rollouts
from learning.agents.rollouts import Rollout, make_rollout
from learning.agents.showing import ShownRows, add_system_message, build_system_text
from learning.data.chat import encode_completion
from learning.data.row_journal import RowJournal
from learning.lookup import Bound, bind
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample, SampleRequest
from schemas.agent import Agent, ExtractorUse
from schemas.errors import StepError


def row(name, text="4-2"):
    return {"id": name, "prompt": [{"role": "user", "content": text}], "answer": "x"}


def test_a_group_that_the_journal_knows_is_not_sampled_again(answering, tmp_path):
    requests = [SampleRequest(row("a", "a"), 3), SampleRequest(row("b", "b"), 2)]
    with RowJournal(tmp_path / "whole.jsonl") as journal:
        first = answering(lambda prompt, number: f"{prompt[-1]}{number}", step=4)
        spent = []
        want = sample_rollouts(first, requests, journal, spent.append)
        assert [sample.text for sample in want] == ["a0", "a1", "a2", "b0", "b1"]
        assert spent == [sum(len(sample.completion_ids) for sample in of) for of in (want[:3], want[3:])]
        kept = journal["4.1"]
    with RowJournal(tmp_path / "part.jsonl") as journal:
        journal.add({"4.1": kept, "3.0": kept})
        again = answering(lambda prompt, number: f"{prompt[-1]}{number}", step=4)
        assert sample_rollouts(again, requests, journal) == want
        assert [request.n for request in again.engine.requests] == [3]
        # Its stream is that of its place, not of its order among those that are left.
        assert again.engine.requests == first.engine.requests[:1]


def test_a_completion_is_taken_apart_into_turns(tiny_policy):
    tokenizer = tiny_policy.tokenizer
    ids = [encode_completion(tokenizer, [{"role": "assistant", "content": text}]) for text in ("ab", "cd", "e")]
    turns = [Turn(len(ids[0]), len(ids[1])), Turn(len(ids[2]))]
    assert make_rollout(tokenizer, [*ids[0], *ids[1], *ids[2]], turns, 1.0) == Rollout(("ab", "e"), ("cd", ""), 1.0)
    # A turn that did not end, and a completion without any.
    assert make_rollout(tokenizer, [*ids[0], *ids[1], ids[2][0]], turns[:1], 0.5).actions == ("ab", "e")
    assert make_rollout(tokenizer, ids[0], [], 0.0) == Rollout(("ab",), ("",), 0.0)


@pytest.mark.parametrize(
    ("best", "worst", "want"),
    [
        (("search: 4-2", "bolt done"), ("reverse: 4-2", "2-4 over"), "step 1: search, not reverse"),
        (("search: 4-2", "bolt done"), ("search: 4-2", "bolt over"), "step 2: done, not over"),
        (("search: 4-2", "bolt done"), ("search: 4-2",), "step 2: done, not nothing"),
        (("search: 4-2",), ("search: 4-2", "bolt over"), None),
        (("search: 4-2", "4 done"), ("search: 4-1", "5 done"), None),
    ],
)
def test_the_rule_names_the_first_step_in_which_best_and_worst_differ(best, worst, want):
    ranked = [Rollout(best, ("",) * len(best), 1.0), Rollout(("x",), ("",), 0.5), Rollout(worst, ("",) * len(worst), 0)]
    experiences = first_difference(
        row("a"), ranked, ["old"], action="^[a-z]+(?=:)|[a-z]+$", template="step {step}: {best}, not {worst}"
    )
    assert experiences == (["old", want] if want else ["old"])


def test_a_lesson_takes_the_place_of_one_about_the_same():
    ranked = [Rollout(("b",), ("",), 1.0), Rollout(("c",), ("",), 0.0)]
    known = ["on 4-2: a", "on 4-21: a", "on 9: b"]
    assert first_difference(row("a"), ranked, known, template="on {subject}: {best}") == [*known[1:], "on 4-2: b"]
    # What is known already becomes the latest; without a beginning nothing else goes.
    assert first_difference(row("a"), ranked, ["b!", "b!c"], template="{best}!") == ["b!c", "b!"]
    with pytest.raises(StepError, match=r"extractor first_difference: invalid pattern '\('"):
        first_difference(row("a"), ranked, [], action="(")
    with pytest.raises(StepError, match=r"no field \{beste\}"):
        first_difference(row("a"), ranked, [], template="{beste}")


def samples(scores, name="a", group=0):
    return [
        Sample(row(name), group, "policy", [1], [6 + i, 1], [0.0, 0.0], "stop", "", reward=score)
        for i, score in enumerate(scores)
    ]


def test_groups_with_equal_rewards_are_not_even_shown(tiny_policy):
    seen = []

    def note(row, rollouts, experiences):
        seen.append((row["id"], [one.score for one in rollouts], experiences))
        return [*experiences, f"of {row['id']}", " two\nlines "]

    scores = {"equal": [1.0, 1.0], "differs": [0.0, None, 1.0, 0.5], "alone": [1.0, None], "near": [0.5, 0.25]}
    some = [sample for group, (name, of) in enumerate(scores.items()) for sample in samples(of, name, group)]
    how = {"tokenizer": tiny_policy.tokenizer, "min_margin": 0.25, "most": 2}
    extracted, metrics = extract_experiences(Bound("note", note, {}), some, ["old"], {"step": 0}, **how)
    # Best first, what has no score left out; a margin is to be exceeded; the latest two stay, on one line each.
    assert seen == [("differs", [1.0, 0.5, 0.0], ["old"])]
    assert extracted == ["of differs", "two lines"]
    assert [line["differs"] for line in metrics] == [False, True, False, False]
    assert [line["learnt"] for line in metrics] == [[], ["of differs", "two lines"], [], []]
    assert metrics[1]["dropped"] == ["old"]
    assert [len(line["rollouts"]) for line in metrics] == [2, 3, 1, 2]


def test_equals_stay_in_the_order_of_their_sampling(tiny_policy):
    ranked = rank_rollouts(tiny_policy.tokenizer, samples([0.0, 1.0, 0.0, 1.0]))
    texts = [tiny_policy.tokenizer.decode([6 + i]) for i in (1, 3, 0, 2)]
    assert [one.actions[0] for one in ranked] == texts


def test_an_extractors_rng_is_its_own_at_every_group_and_step():
    drawn = []

    def draw(rng, experiences):
        drawn.append(int(rng.integers(2**40)))
        return experiences

    some, use = [*samples([0, 1]), *samples([0, 1], "b", 1)], Bound("draw", draw, {})
    for step in (0, 0, 1):
        extract_experiences(use, some, [], {"step": step, "seed": 7}, tokenizer=Nothing(), min_margin=0, most=1)
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) == 4


class Nothing:
    def decode(self, ids, **how):
        return ""


def test_a_system_message_holds_text_heading_and_the_latest_experiences():
    agent = Agent(context={"system": "You help.", "heading": "Known:", "experiences": 2}, experiences=["a", "b", "c d"])
    assert build_system_text(agent) == "You help.\nKnown:\nb\nc d"
    assert build_system_text(agent.model_copy(update={"experiences": []})) == "You help."
    none = agent.model_copy(update={"context": agent.context.model_copy(update={"experiences": 0, "system": ""})})
    assert build_system_text(none) == ""
    assert add_system_message(row("a"), none) == row("a")
    own = {"id": "a", "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]}
    texts = [[m["content"] for m in one["prompt"]] for one in ShownRows([own, row("b")], agent)]
    assert texts == [[f"{build_system_text(agent)}\nBe brief.", "?"], [build_system_text(agent), "4-2"]]
    assert own["prompt"][0]["content"] == "Be brief."


def test_what_a_model_says_becomes_one_line_and_only_once():
    assert add_experience(["a", "b"], " a \n") == ["b", "a"]
    assert add_experience(["a"], " \n ") == ["a"]
    assert format_transcript(Rollout(("x", "y"), ("1", ""), 0.0)) == "x\n=> 1\ny"


def test_the_names_of_the_slot_are_the_functions():
    assert bind(ExtractorUse(use="first_difference", template="{best}")).asks == ["row", "rollouts", "experiences"]
