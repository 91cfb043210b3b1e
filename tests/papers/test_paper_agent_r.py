"""Agent-R: a bad episode is cut where the actor sees the error, and goes on as a good one from their common state.

The search, the question, the splice and the rounds are those of the recipe; proposals and judgements are dictated. Not
shown: that an agent recovers from more errors, which is measured.
"""

from pathlib import Path

import pytest

from learning.evaluation.revisions import Pair, splice
from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import bind
from learning.toy_tasks.crafts import make_craft_row
from learning.tree_search.states import Node
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks.synthesize import accept_samples

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "agent-r.yaml")
STAGES = LOADED.stages
FOUND, MIXED, TUNED = (STAGES[f"rounds-1-{name}"] for name in ("found", "mixed", "tuned"))
TASK = "make: lamp\nlamp: rod\nrod: ore clay\nbell: ore\nhave: nothing"
ROW = make_craft_row({"lamp": ["rod"], "rod": ["ore", "clay"], "bell": ["ore"]}, "lamp", "craft2")
GOOD = [("get ore", "have: ore"), ("get clay", "have: clay ore"), ("craft rod", "have: rod"), ("craft lamp", "")]
BAD = [
    ("get ore", "have: ore"),
    ("craft bell", "have: bell"),
    *(("get clay", f"have: bell{' clay' * count}") for count in range(1, 11)),
]


def read(step, port):
    """The step that a port of another one reads."""
    (found,) = [one for one in LOADED.ports(step) if one.path == port]
    return found.steps[0]


def talk(turns):
    """The conversation of the task after some turns, each with what was answered."""
    said = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("assistant", "user"), turn, strict=True)
    ]
    return [{"role": "user", "content": TASK}, *said]


class Actor:
    """Proposes the turns of the two episodes, and calls one turn of the bad one `bad`."""

    def __init__(self, marks, *, otherwise="good"):
        self.marks, self.otherwise, self.questions = marks, otherwise, []

    def __call__(self, rows):
        return [[AnswerSample(text, "stop") for text in self.answer(row["prompt"])] for row in rows]

    def answer(self, prompt):
        if prompt[-1]["content"].endswith("was the last action good or bad?"):
            self.questions.append(prompt[-1]["content"])
            # Task and question have six lines, each turn two; the history of the first turn is an empty line.
            turn = max(1, (len(prompt[-1]["content"].splitlines()) - 6) // 2)
            return ["bad" if turn == self.marks else self.otherwise]
        done = [message["content"] for message in prompt if message["role"] == "assistant"]
        if done == ["get ore"]:
            return ["get clay", "craft bell", "get clay"]
        plan = BAD if "craft bell" in done else GOOD
        return [plan[len(done)][0]]


def search(stage, actor):
    """What the search of a stage returns for the task, and the rows that the stage keeps."""
    rows = bind(stage.search)([ROW], actor, lambda shown, texts: [0.0] * len(texts))
    return accept_samples(stage, rows)


def split(rows):
    """Rows of the good episode, and those of the revision."""
    return [row for row in rows if "=" in row["id"]], [row for row in rows if ">" in row["id"]]


@pytest.mark.parametrize("marks", [1, 3])
def test_a_bad_episode_goes_on_as_the_good_one_after_the_turn_that_the_actor_marks(marks):
    assert ROW["prompt"][0]["content"] == TASK
    actor = Actor(marks)
    good, revision = split(search(FOUND, actor))
    thought = revision[0]["text"]
    assert thought in FOUND.search.options["thoughts"]
    kept = BAD[:marks]
    # The two episodes share the state after `get ore`; no turn of the bad one comes after the thought.
    whole = talk([*kept, (thought, "ok"), *GOOD[1:]])
    assert [row["text"] for row in revision] == [thought, "get clay", "craft rod", "craft lamp"]
    for number, row in enumerate(revision):
        assert row["prompt"] == whole[: 1 + 2 * (marks + number)]
        assert row["completion"] == [whole[1 + 2 * (marks + number)]]
    assert len(actor.questions) == marks  # nothing is asked after the turn that is marked
    # Good episodes are learned as they are.
    assert [(row["prompt"], row["text"]) for row in good] == [
        (talk(GOOD[:number]), GOOD[number][0]) for number in range(4)
    ]
    assert "craft bell" not in {row["text"] for row in (*good, *revision)}
    assert (TUNED.train_on, TUNED.data) == ("last", "mixed")


def test_the_splice_at_the_end_does_not_ask_the_actor():
    actors = [Actor(1), Actor(3)]
    stage = STAGES["at_the_end-1-found"]
    spliced = [split(search(stage, actor))[1] for actor in actors]
    assert spliced[0] == spliced[1]
    assert spliced[0][0]["prompt"] == talk(BAD)  # all twelve turns
    assert [row["text"] for row in spliced[0]][1:] == ["get clay", "craft rod", "craft lamp"]
    assert [actor.questions for actor in actors] == [[], []]


@pytest.mark.parametrize(("word", "kept"), [("good", 12), ("Uncertain.", 12), ("so bad", 1)])
def test_what_is_not_called_good_or_uncertain_is_an_error(word, kept):
    _, revision = split(search(FOUND, Actor(None, otherwise=word)))
    assert revision[0]["prompt"] == talk(BAD[:kept])


def test_the_question_is_the_one_that_the_cold_start_has_learned_to_answer():
    actor = Actor(2)
    search(FOUND, actor)
    assert actor.questions[1] == (
        f"{TASK}\nget ore\nhave: ore\ncraft bell\nhave: bell\nwas the last action good or bad?"
    )
    (problems,) = STAGES["judged"].problems
    assert (problems.use, problems.options["judge"]) == ("craft_verdicts", FOUND.search.options["judge"])
    assert STAGES["judged"].teacher.use == "answer"
    verdicts = bind(problems)()
    assert {row["answer"] for row in verdicts} == {"good", "bad"}
    assert all(row["prompt"][0]["content"].endswith("\nwas the last action good or bad?") for row in verdicts)
    assert {read("lessons", f"sources.{place}.from") for place in (0, 1)} == {"played", "judged"}


def test_episodes_of_two_trees_are_refused():
    def end(root, *actions):
        node = root
        for action in actions:
            node = Node(node.row, None, parent=node, action=action, depth=node.depth + 1)
        return node

    one, two = Node(ROW, "{}"), Node(ROW, "{}")
    assert len(splice(Pair(end(one, "get ore", "a"), end(one, "get ore", "b")), 2, "wait", "ok")) == 2
    with pytest.raises(StepError, match="without a common state"):
        splice(Pair(end(one, "get ore", "a"), end(two, "get ore", "b")), 2, "wait", "ok")


def test_a_round_searches_and_goes_on_with_the_model_of_the_round_before():
    assert read("rounds-1-found", "model") == read("rounds-1-tuned", "model") == "cold_start"
    assert read("rounds-2-found", "model") == read("rounds-2-tuned", "model") == "rounds-1-tuned"
    for number in (1, 2):
        assert read(f"rounds-{number}-tuned", "data") == f"rounds-{number}-mixed"
        assert [read(f"rounds-{number}-mixed", f"sources.{place}.from") for place in (0, 1)] == [
            f"rounds-{number}-found",
            "judged",
        ]
    assert "rounds-3-found" not in STAGES
    assert [source.weight for source in MIXED.sources] == [0.7, 0.3]
    assert FOUND.search.use == "state_revisions"
    assert FOUND.search.options["good"] == FOUND.min_reward == 1.0


def test_the_trainings_differ_in_what_is_spliced_alone():
    for number in (1, 2):
        stages = {
            name: [STAGES[f"{name}-{number}-{part}"].model_dump() for part in ("found", "mixed", "tuned")]
            for name in ("rounds", "at_the_end", "optimal")
        }
        differ = {name: parts[0]["search"].pop("cut", None) for name, parts in stages.items()}
        assert differ == {"rounds": None, "at_the_end": "end", "optimal": None}
        kinds = {name: parts[0]["search"].pop("returns", None) for name, parts in stages.items()}
        assert kinds == {"rounds": None, "at_the_end": None, "optimal": "good"}
        assert stages["rounds"] == stages["at_the_end"] == stages["optimal"]
    rows = search(STAGES["optimal-1-found"], Actor(1))
    assert [row["text"] for row in rows] == [action for action, _ in GOOD]
    report = STAGES["report"]
    assert [read("report", f"models.{name}") for name in ("start", "optimal", "at_the_end", "trained")] == [
        "cold_start",
        "optimal-2-tuned",
        "at_the_end-2-tuned",
        "rounds-2-tuned",
    ]
    assert (report.env, [use.use for use in report.rewards]) == (
        type(report.env).model_validate(FOUND.search.options["env"]),
        ["environment.earned"],
    )
    tasks, held_out = bind(STAGES["tasks"].problems[0])(), bind(report.tasks[0])()
    assert not {row["id"] for row in tasks} & {row["id"] for row in held_out}
    assert {row["family"] for row in tasks} == {"craft2"}
