from learning.evaluation.reward_probes import RewardTest, make_probes, run_reward_tests

ROW = {"id": "q", "prompt": [{"role": "user", "content": "1+2="}], "answer": "3"}


def test_probes_are_what_cheats_try():
    probes = make_probes(RewardTest(ROW, [r"\boxed{42}"]))
    assert probes["empty"] == ""
    assert probes["prompt copied"] == "1+2="
    assert probes["format alone"] == r"\xxxxx{xx}"
    assert probes["repeated"].split("\n") == [r"\boxed{42}"] * 20
    assert "repeated" not in make_probes(RewardTest(ROW, []))
    assert "empty" not in make_probes(RewardTest(ROW, ["", "3"]))


def run(score, good=("3", "3."), bad=("4",)):
    results = run_reward_tests([RewardTest(ROW, good, bad)], lambda rows, texts: [score(text) for text in texts])
    return [(result.kind, result.completion) for result in results if not result.ok]


def test_a_sound_reward_holds():
    assert run(lambda text: float(text.rstrip(".") == "3")) == []


def test_what_scores_as_high_as_the_worst_good_answer_fails():
    assert run(lambda text: float("3" in text)) == [("repeated", "\n".join(["3"] * 20))]
    assert run(lambda text: {"3": 1.0, "3.": 0.5, "4": 0.5}.get(text, 0.0)) == [("bad", "4")]


def test_a_good_answer_needs_a_score_and_others_do_not():
    assert run(lambda text: 1.0 if text == "3" else None) == [("good", "3.")]
