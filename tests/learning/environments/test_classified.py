"""Calls that are told apart by what they show."""

from learning.environments.lookup_environment import build_environment
from schemas.use import EnvUse

DOCUMENTS = ["bam river zed", "tok twin bam", "zed is old"]
TOOLS = {
    "use": "tools",
    "tools": [{"use": "search", "ranking": "bm25", "top": 2, "documents": DOCUMENTS}, "calculator"],
}


def play(*turns):
    env = build_environment(EnvUse.model_validate({"use": "classified", "of": TOOLS}), {})
    episode = env.begin({"id": "a", "metadata": None}, 0)
    return [episode.step(turn) for turn in turns]


def test_a_call_is_new_verifying_or_redundant():
    made = play(
        "search: tok", "search: river", "search: tok", "search: old", "search:", "walk: x", "calculator: 1+1", "zed"
    )
    assert [one.kind for one in made] == [
        "search new",
        "search verifying",  # bam's document, which tok's ended with
        "search redundant",
        "search verifying",
        "search redundant",
        "walk redundant",
        "calculator new",
        "",
    ]
    assert made[-1].done
    assert [one.ok for one in made] == [True, True, True, True, False, False, True, True]
    assert made[0].observation == "tok twin bam"


def test_an_answer_with_an_old_and_a_new_line_is_not_redundant():
    assert [one.kind for one in play("search: bam", "search: bam old zed")] == ["search new", "search verifying"]
    assert [one.kind for one in play("search: river", "search: river bam")] == ["search new", "search new"]
