import json

import numpy as np
import pytest

from learning.curation.row_filters import unanswered
from learning.lookup import bind
from learning.rewards import collective
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler, score
from learning.toy_tasks.atlas import (
    atlas_facts,
    atlas_questions,
    describe,
    find_answers,
    fuzz_words,
    harden,
    inject_facts,
    list_texts,
    make_atlas,
    plan_searches,
    reader,
    reveals_answer,
)
from learning.toy_tasks.sums import first_step
from schemas.errors import StepError
from schemas.use import ProblemsUse, RewardUse

SMALL = (
    ("bam", "twin", "tok"),
    ("tok", "twin", "lun"),
    ("lun", "twin", "bam"),
    ("bam", "river", "zed"),
    ("tok", "river", "zul"),
    ("lun", "river", "zed"),
    ("bam", "ruler", "pim"),
    ("tok", "ruler", "pam"),
    ("lun", "ruler", "rok"),
)


def test_a_query_is_answered_by_reading():
    assert find_answers(("ruler", "bam"), SMALL) == {"pim"}
    assert find_answers(("ruler", ("twin", "bam")), SMALL) == {"pam"}
    assert find_answers(("ruler", ("with", "river", "zul")), SMALL) == {"pam"}
    assert find_answers(("ruler", ("with", "river", "zed")), SMALL) == {"pim", "rok"}
    assert find_answers(("ruler", ("with", "ruler", "p*")), SMALL) == {"pim", "pam"}
    assert describe(("ruler", ("twin", ("with", "river", "z*")))) == "ruler of twin of town with river z*"


def test_a_fact_is_injected_in_the_innermost_place_and_a_word_fuzzed_from_its_end():
    asked = list(inject_facts(("ruler", "tok"), SMALL))
    assert ("ruler", ("twin", "bam")) in asked
    assert ("ruler", ("with", "river", "zul")) in asked
    assert all(find_answers(query, SMALL) == {"pam"} for query in asked)
    assert next(inject_facts(("ruler", ("twin", "bam")), SMALL)) == ("ruler", ("twin", ("twin", "lun")))
    assert list(fuzz_words(("ruler", ("with", "river", "zul")))) == [("ruler", ("with", "river", "zu*"))]
    assert list(fuzz_words(("ruler", ("with", "river", "z*")))) == []
    assert list(fuzz_words(("ruler", "bam"))) == []


def test_no_step_makes_another_answer_possible_or_says_the_answer():
    for seed in range(60):
        for query in (("ruler", "tok"), ("river", "lun"), ("twin", "bam")):
            answer = find_answers(query, SMALL)
            for _, asked in harden(query, SMALL, 4, np.random.default_rng(seed)):
                assert find_answers(asked, SMALL) == answer
                assert not reveals_answer(asked, *answer)
    assert reveals_answer(("ruler", ("with", "ruler", "pa*")), "pam")


def test_questions_of_both_sides_differ_and_show_what_they_take():
    seeds = {"train": 1, "test": 2}
    sides = [atlas_questions(size=60, split=split, rounds=3, shown=6, seed=seed) for split, seed in seeds.items()]
    assert not {row["id"] for row in sides[0]} & {row["id"] for row in sides[1]}
    documents = make_atlas(15, 0)
    for row in sides[0]:
        shown, _, question = row["prompt"][0]["content"].rpartition(". ")
        seen = tuple(tuple(line.split()) for line in shown.split("; "))
        assert len(seen) == len(set(seen)) == 6
        assert set(seen) <= set(documents)
        assert reader(row, None).endswith(f"#### {row['answer']}")
        assert json.loads(row["metadata"])["steps"][-1][1] + "?" == question
    assert len({json.loads(row["metadata"])["hops"] for row in sides[0]}) >= 3
    with pytest.raises(StepError, match="raise `towns`"):
        atlas_questions(size=500, split="train", towns=4, rounds=0)


def test_a_search_goes_from_the_inside_out():
    assert plan_searches(("ruler", ("twin", "bam")), SMALL) == ["search: bam twin", "search: tok ruler", "pam"]
    assert plan_searches(("ruler", ("with", "river", "zu*")), SMALL) == ["search: river zu", "search: tok ruler", "pam"]
    assert plan_searches(("with", "ruler", "pim"), SMALL) == ["search: ruler pim", "bam"]
    # What looks as much like it and stands before it is shown in its place.
    assert plan_searches(("twin", "bam"), (("fam", "twin", "bam"), *SMALL)) is None
    assert plan_searches(("ruler", ("twin", "bam")), (("fam", "twin", "bam"), *SMALL)) is None
    assert plan_searches(("with", "river", "bo*"), SMALL) is None


def test_questions_without_documents_come_with_a_script_of_searches():
    documents = make_atlas(15, 0)
    for row in atlas_questions(size=60, split="train", rounds=3, seed=1):
        notes = json.loads(row["metadata"])
        assert notes["documents"] == list_texts(documents)
        assert len(notes["script"]) == notes["hops"] + 1
        assert notes["script"][-1] == row["answer"]
    (row,) = atlas_questions(size=1, split="train", shown=6)
    assert not {"script", "documents"} & json.loads(row["metadata"]).keys()


def test_a_corpus_has_every_document_once():
    rows = atlas_facts(form="document")
    assert {(*row["prompt"][0]["content"].split(), row["answer"]) for row in rows} == set(make_atlas(15, 0))
    assert len(rows) == 60


def test_a_question_that_a_model_answers_unseen_is_dropped(answering, monkeypatch):
    import learning.sampling.verdicts

    sampler = answering(lambda prompt, number: "zed" if "river of bam" in prompt and number == 2 else "no")
    monkeypatch.setattr(learning.sampling.verdicts, "guest", lambda folder: sampler)
    known, unknown = (
        {"id": q, "prompt": [{"role": "user", "content": f"bam river zed. {q}"}], "answer": "zed"}
        for q in ("river of bam?", "river of tok?")
    )
    assert not unanswered(known, model="m", tries=4, after=". ", max_completion_length=4)
    assert unanswered(known, model="m", tries=2, after=". ", max_completion_length=4)
    assert unanswered(unknown, model="m", tries=4, after=". ", max_completion_length=4)
    assert all("zed." not in prompt for prompt in sampler.engine.prompts)


def sums(text="3 + 4 - 2 =", answer="5"):
    return {"id": "s", "prompt": [{"role": "user", "content": text}], "answer": answer, "family": "f"}


def test_a_plan_is_the_first_step():
    assert first_step(sums(), np.random.default_rng(0)) == "3 + 4 = 7"
    slips = {first_step(sums(), np.random.default_rng(i), error_rate=1.0) for i in range(40)}
    assert slips == {f"3 + 4 = {n}" for n in (5, 6, 8, 9)}


def test_problems_come_with_a_teachers_plan():
    of = {"use": "reasoning_gym", "family": "chain_sum", "split": "train", "size": 3, "style": "short"}
    of["config"] = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    plain = bind(ProblemsUse.model_validate(of))()
    for row, made in zip(plain, bind(ProblemsUse(use="second_opinions", of=of, by="first_step"))(), strict=True):
        text = row["prompt"][0]["content"]
        assert made["prompt"][0]["content"] == f"{text} {first_step(row, np.random.default_rng(0))}; {text}"
        assert made["answer"] == row["answer"]


def test_who_leads_earns_the_mean_of_those_who_follow(answering, tiny_policy, monkeypatch):
    partner = answering(lambda prompt, number: "5" if "= 7;" in prompt and number < 3 else "6")
    monkeypatch.setattr(collective, "guest", lambda folder: partner)
    use = RewardUse(use="collective.led", of="answers.exact", partner="p", calls=4, max_completion_length=4)
    samples = [Sample(sums(), 0, "policy", [1], [5], [-1.0], "stop", text) for text in ("3 + 4 = 7", "3 + 4 = 8")]
    score([bind(use, "rewards.0", {"rewards.0.partner": "p"})], [1.0], samples, {"step": 0, "seed": 0, "states": {}})
    assert [t.reward for t in samples] == [0.75, 0.0]
    assert [(r.n, r.first) for r in partner.engine.requests] == [(4, 0)] * 2
    assert isinstance(partner, Sampler)
