"""What a user brings to `--profile own`: a model, and files in columns of their own, foreign to every recipe."""

import json
import math
from pathlib import Path
from typing import Any

from schemas.recipe.load import Recipe
from schemas.source.extend import read_recipe

RECIPES = Path(__file__).parents[2] / "recipes" / "papers"
SUMS = [(a, b) for a in range(1, 9) for b in range(1, 6)]
NAMES = ("double", "triple", "next", "square", "negative", "half", "same", "tenth")
BODIES = ("2 * n", "3 * n", "n + 1", "n * n", "-n", "n // 2", "n", "n // 10")
"""Functions of a number, to be written in Python."""
LINE, CORRIDOR = "tests.control_worlds:line", "tests.control_worlds:corridor"
DRIFT = "tests.control_worlds:drift"
LAMPS, STAIRS = "tests.control_worlds:lamps", "tests.control_worlds:stairs"
FORMS = "tests.control_worlds:forms"
MEETING, PLANTS = "tests.control_worlds:meeting", "tests.control_worlds:plants"
WORLDS: dict[str, str] = {
    **dict.fromkeys(("a2pr", "dual-rl", "famo2o", "h2o", "mdpo", "oer", "oppo", "rlif", "sac"), LINE),
    **dict.fromkeys(("compatible-demonstrations", "gym-electric-motor", "neorl-2"), LINE),
    **dict.fromkeys(("demonstration-regularized-rl", "offline-data-pcg", "open-rl-benchmark", "ss-orl"), CORRIDOR),
    **dict.fromkeys(("how-to-autorl", "icpl"), CORRIDOR),
    **dict.fromkeys(("bisimulation-history-offline-rl", "gbrl", "json2vec"), CORRIDOR),
    **dict.fromkeys(("how-to-autorl", "icpl", "rladapter", "srl"), CORRIDOR),
    **dict.fromkeys(("bisimulation-history-offline-rl", "gbrl"), CORRIDOR),
    **dict.fromkeys(("contrastive-ucb", "dr-rpo", "hnpg"), CORRIDOR),
    "model-based-generalization": LAMPS,
    **dict.fromkeys(("barfi", "iwocs", "spo"), CORRIDOR),
    "sqirl": STAIRS,
    "mamql": MEETING,
    "qweb": FORMS,
    "sequoia": PLANTS,
    "cityflow": "city",
    "unicorn-crs": "conversation",
    "learning-to-fly": DRIFT,
    "tgpo": "timed_reach",
    "optimistic-forgetting": "tests.control_worlds:fence",
    "teachmyagent": "tests.control_worlds:goal_line",
    "knowledge-enhanced-agents": "tests.control_worlds:notes",
    "envgen": "tests.control_worlds:practised",
    "rl-watermark": "watermarks",
    "oni": CORRIDOR,
    **dict.fromkeys(("morl-hpo", "xrl-survey"), "tests.control_worlds:errands"),
}
"""A user's own environment for each row of control."""
ACTING = {
    LINE: "tests.control_worlds:steer",
    CORRIDOR: "tests.control_worlds:stride",
    "tests.control_worlds:errands": "tests.control_worlds:stride",
    MEETING: "tests.control_worlds:name_the_others",
}
"""A function that acts well in it."""


def write_files(folder: Path) -> None:
    """Write the files of a user: questions with answers, solutions, tests of programs, pairs, chains and documents."""
    rows = [{"question": f"What is {a} plus {b}?", "answer": str(a + b), "worked": f"It is {a + b}."} for a, b in SUMS]
    files: dict[str, list[dict[str, Any]]] = {"train": rows[:30], "test": rows[30:]}
    files["bare"] = [{"question": row["question"]} for row in rows[30:]]
    files["pairs"] = [{"prompt": row["question"], "chosen": row["worked"], "rejected": "No."} for row in rows[:30]]
    files["code"] = [
        {
            "task": f"Write a Python function {name}(n) that returns {body}.",
            "tests": [f"assert {name}({n}) == {eval(body, {'n': n})}" for n in (2, 7)],
            "program": f"def {name}(n):\n    return {body}",
            "rubric": [{"criterion": "returns something", "evidence": ["return"]}],
        }
        for name, body in zip(NAMES, BODIES, strict=True)
    ]
    files["rankings"] = [
        {"question": f"Mark these numbers by size: {b}, {a + b}, {a}", "answer": f"{b} {a + b} {a}"}
        for a, b in SUMS[:12]
    ]
    files["chains"] = [
        {"chain": f"{a} + {b} = {a + b + wrong}", "place": str(wrong - 1), "steps": 1}
        for i, (a, b) in enumerate(SUMS[:12])
        for wrong in (i % 2,)
    ]
    places = [(f"town {a}{b}", f"river {b}{a}") for a, b in SUMS[:16]]
    texts = [f"{town} lies at {river}." for town, river in places]
    files["documents"] = [{"title": town, "text": text} for (town, _), text in zip(places, texts, strict=True)]
    files["searches"] = [
        {"question": f"Where does {town} lie?", "answer": river, "documents": texts} for town, river in places
    ]
    files["visits"] = [
        {
            "question": row["question"],
            "answer": row["answer"],
            "experience": f"{row['question']} {row['worked']} Right.",
        }
        for row in rows[:12]
    ]
    files["dialogues"] = [
        {"said": f"Do you give to {what}?", "reply": f"Yes, I gave {n} to {what}.", "topic": [what]}
        for n, what in enumerate(
            ("children", "parks", "schools", "rivers", "farms", "towns", "lakes", "woods", "roads", "ships")
        )
    ]
    files["secrets"] = [
        {"question": "Guess my number from 0 to 99.", "secret": 7 * n % 100, "id": f"s{n}"} for n in range(24)
    ]
    files["tables"] = [
        {
            "question": f"Which town has {n}?",
            "tables": {"towns": [{"n": k} for k in range(4)]},
            "gold": "select n from towns",
        }
        for n in range(8)
    ]
    files["requests"] = [
        {"question": f"Show {n}.txt", "files": {f"{n}.txt": "x"}, "gold": f"cat {n}.txt"} for n in range(8)
    ]
    files["sites"] = [
        {"question": f"Write a page about {name}.", "pages": {"index.html": {"texts": [name], "links": ["index.html"]}}}
        for name in NAMES
    ]
    files["records"] = [
        {
            "question": f"Pulse: {60 + a}. Weight: {50 + b}. How much is the pulse?",
            "answer": str(60 + a),
            "spans": {"pulse": f"Pulse: {60 + a}.", "weight": f"Weight: {50 + b}."},
            "expert": {"pulse": 0.9, "weight": 0.1},
        }
        for a, b in SUMS[:16]
    ]
    files["forms"] = [
        {"form": json.dumps({"name": f"n{a}", "ages": [a, {"of": b}]}), "class": ("old", "young")[a % 2]}
        for a, b in SUMS[:16]
    ]
    files["lists"] = [
        {"question": f"How much is it in all?|{','.join(str(n) for n in range(a, a + 8))}", "answer": str(8 * a + 28)}
        for a in range(1, 9)
    ]
    files["games"] = [
        {
            "question": f"Game {n}.",
            "frames": [{"state": f"gold {n + t}", "action": (None, "buy", "sell")[(n + t) % 3]} for t in range(4)],
        }
        for n in range(12)
    ]
    files["errands"] = [
        {
            "question": f"What is {a} plus {b}?",
            "requests": [
                {"text": f"What is {a} plus {b}?", "checklist": [{"item": "says it", "evidence": [str(a + b)]}]},
                {"text": "Bye.", "checklist": [{"item": "is polite", "evidence": ["bye", "thank"]}]},
            ],
        }
        for a, b in SUMS[:12]
    ]
    files["cases"] = [
        {
            "question": f"Where does {town} lie?",
            "answer": river,
            "records": texts,
            "cards": [f"{town} is small." for town, _ in places],
            "evidence": [{"item": "finds it", "evidence": [river], "focus": "answer"}],
            "structure": [{"item": "reasons", "evidence": ["reason:"]}],
        }
        for town, river in places
    ]
    files["tried"] = [
        {"question": "guess", "answer": f"Thought: so\nAction: {n}", "outcome": "solved"} for n in range(10)
    ]
    files["goals"] = [
        {
            "question": f"Show {left} = {right}.",
            "goal": f"{left} = {right}",
            "rules": {"drop": "x+0 = x", "turn": "x*y = y*x"},
        }
        for left, right in (
            *((f"{a}+0", a) for a in "abcdefgh"),
            *((f"{a}*{b}", f"{b}*{a}") for a, b in ("ab", "bc", "cd", "de")),
        )
    ]
    files["interviews"] = [
        {
            "question": f"I am guest {n}.",
            "answer": f"room {n % 3}",
            "facts": {"city": ("rome", "oslo", "lima")[n % 3], "pet": ("cat", "dog")[n % 2]},
            "rubric": [{"criterion": "names the room", "weight": 2.0, "evidence": [f"room {n % 3}"]}],
        }
        for n in range(10)
    ]
    files["written"] = [
        {
            "idea": f"fetch {thing}",
            "game": json.dumps(
                {
                    "rooms": {"shed": {"east": "yard"}, "yard": {"west": "shed"}},
                    "holders": {"shelf": {"room": "shed"}},
                    "items": {thing: "yard"},
                    "start": "shed",
                    "goal": {"item": thing, "holder": "shelf"},
                }
            ),
        }
        for thing in ("rake", "hose", "pot", "seed")
    ]
    files["team_runs"] = [
        row
        | {
            "log": [
                {"agent": "planner", "output": "look it up"},
                {"agent": "search", "input": town, "output": text},
                {"agent": "answer", "output": river},
            ]
        }
        for row, (town, river), text in zip(files["searches"], places, texts, strict=True)
    ]
    files["told"] = [
        {"question": f"Guess number {n}.", "secret": 7 * n, "moves": f"Thought: a multiple of 7\nAnswer: {7 * n}"}
        for n in range(10)
    ]
    files["talks"] = [
        {
            "messages": [
                {"role": "user", "content": f"Guess my number from 0 to {n + 9}."},
                {"role": "assistant", "content": f"It is {n}."},
                {"role": "user", "content": "It is higher."},
                {"role": "assistant", "content": f"It is {n + right}."},
            ],
            "rewards": [0.25, float(right)],
        }
        for n in range(8)
        for right in (0, 1)
    ]
    files["issues"] = [
        {
            "question": f"add{n} gives a wrong number.",
            "answer": f"Hint: add{n} subtracts.",
            "install": "path src",
            "date": "2024-09-01" if n < 7 else "2025-01-05",
            "files": {"src/sums.py": f"def add{n}(m):\n    return m - {n}\n"},
            "gold": {"src/sums.py": f"def add{n}(m):\n    return m + {n}\n"},
            "tests": {f"sums.add{n}(1)": 1 + n},
        }
        for n in range(1, 14)
    ]
    files["materials"] = [
        {
            "question": f"A crystal of {a} and {b} in {side}x4.",
            "composition": {a: 1, b: 1},
            "cell": [side, 4],
            "group": "pmm",
            "stiffness": [90.0, 140.0],
        }
        for a, b in ("KF", "MO")
        for side in (3, 4, 5, 6)
    ]
    files["contests"] = [
        {
            "question": "Predict y.",
            "files": {"train.csv": "x,y\n1,2\n2,4\n", "test.csv": f"x\n{n}\n{n + 1}\n"},
            "answers": [str(2 * n), str(2 * n + 2)],
            "metric": "mae",
            "leaderboard": [0.5, 1.0, 4.0],
        }
        for n in range(10)
    ]
    for name in (
        "cases",
        "contests",
        "issues",
        "code",
        "errands",
        "tried",
        "goals",
        "interviews",
        "searches",
        "secrets",
        "records",
        "lists",
        "materials",
        "dialogues",
        "games",
        "visits",
        "tables",
        "requests",
        "sites",
    ):
        files[f"{name}_test"] = files[name][-2:]
        files[name] = files[name][:-2]
    write_city(folder / "city")
    write_log(folder / "log")
    for name, of in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))


def write_city(folder: Path) -> None:
    """Write a street through two intersections."""
    roads = [{"id": name, "to": to, "way": "ew", "travel": 3} for name, to in (("a", "x"), ("b", "y"), ("c", None))]
    folder.mkdir()
    (folder / "roads.json").write_text(json.dumps({"intersections": ["x", "y"], "roads": roads}))
    flow = {"route": ["a", "b", "c"], "start": 0, "every": 3, "count": 9}
    (folder / "flow.json").write_text(json.dumps([flow]))


def write_log(folder: Path) -> None:
    """Write what is on a small menu, and who ordered what."""
    menu = {"soup": ["warm", "green"], "salad": ["green"], "tea": ["warm"], "cake": ["sweet"]}
    orders = {"train": [["ann", "soup"], ["ann", "salad"], ["bob", "tea"]], "test": [["ann", "tea"], ["bob", "cake"]]}
    folder.mkdir()
    (folder / "items.json").write_text(json.dumps(menu))
    (folder / "log.json").write_text(json.dumps(orders))


def list_turns() -> list[tuple[str, str]]:
    """Return turns of which a tokenizer can learn the words of the files."""
    return [(f"What is {a} plus {b}?", f"It is {a + b}.") for a, b in SUMS]


def list_overrides(row: str, folder: Path, model: str) -> list[str]:
    """Return `--set` values for every variable of a row's profile `own` that has none."""
    tree = read_recipe(RECIPES / f"{row}.yaml", "own").get("vars")
    asked = [name for name, value in ({} if tree is None else tree.plain()).items() if value is None]
    question = {"prompt": "question"}
    worked = {"prompt": "question", "completion": "worked"}

    def read(name: str, columns: dict[str, str]) -> dict[str, Any]:
        return {"from": f"path:{folder}/{name}.jsonl", "columns": columns}

    def read_both(name: str, columns: dict[str, str]) -> dict[str, Any]:
        return {"prompts": read(name, columns), "held_out": read(f"{name}_test", columns)}

    task, talk = {"prompt": "task"}, {"prompt": "said", "completion": "reply"}
    known: dict[str, Any] = {
        **{name: model for name in asked if name.endswith("model")},
        **{name: read("train", question) for name in ("prompts", "second_prompts", "third_prompts")},
        "held_out": read("test", question),
        "unlabelled": read("bare", question),
        "open_prompts": read("bare", question),
        "easy_prompts": read("searches", question),
        "pairs": f"path:{folder}/pairs.jsonl",
        "rankings": read("rankings", question),
        "chains": read("chains", {"prompt": "chain", "answer": "place"}),
        "documents": read("documents", {"prompt": "title", "completion": "text"}),
        "dialogues": read("dialogues", talk),
        "episodes": f"path:{folder}/talks.jsonl",
        **dict.fromkeys(("records", "held_out_records"), read("forms", {"prompt": "form", "answer": "class"})),
        "traces": read("train", worked),
        "held_out_traces": read("test", question),
        "answers": read("train", {"prompt": "question", "completion": "answer"}),
        "task": "Answer sums.",
        "url": "http://127.0.0.1:9",
        "proposer": {"use": "one_of", "texts": ["Be brief.", "Be careful."]},
        "env": {"use": "tests.papers.own_worlds:Environment", "max_turns": 3},
        "world": {"use": "tests.papers.own_worlds:Environment"},
        "text_env": {"use": "tests.papers.own_worlds:Environment"},
        "game": "tests.papers.own_worlds:guess_together",
        "dense_env": {"use": "tests.papers.own_worlds:Environment", "max_turns": 3},
        "priority": ["buy", "sell"],
    }
    special: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("coderl-plus", "verirl"), read_both("code", task)),
        "b-coder": {
            **read_both("code", task),
            "solutions": read("code", {"prompt": "task", "completion": "program"}),
        },
        "stitchcuda": {**read_both("code", task), "verifier": "tests.papers.own_worlds:look_for_return"},
        "drive": {**read_both("code", task), "hard_prompts": read("code", task)},
        **dict.fromkeys(
            (
                *("agentgym-rl", "dart-gui", "epo", "g-ra", "gigpo", "loop", "rl-mle-agents", "rlvmr", "spa-rl"),
                *("tti", "webagent-r1", "gfcr", "meow-tea-taro", "lmrl-gym", "imagined-conversations"),
                "knowledge-enhanced-agents",
            ),
            read_both("secrets", question),
        ),
        **dict.fromkeys(
            (
                "asearcher",
                "deep-research-rl-survey",
                "deeptravel",
                "igpo",
                "iterresearch",
                "mem1",
                "memsearcher",
                "searchgym",
                "supo",
                *("a2fm", "fathom-deepresearch", "adasearch", "deepresearcher", "inspo", "ssrl"),
            ),
            read_both("searches", question),
        ),
        "hindsight-regenerations": {
            **read_both("secrets", question),
            "dialogues": f"path:{folder}/talks.jsonl",
        },
        "mle-dojo": read_both("contests", question),
        "agent-rlvr": read_both("issues", question),
        "swe-rebench": {
            **read_both("issues", question),
            "recipes": read("issues", {"prompt": "question", "completion": "install"}),
        },
        "search-self-play": read_both("searches", question),
        "intercode": {"held_out": read("tables", question), "requests": read("requests", question)},
        "cm2": read_both("errands", question),
        "deep-dxsearch": read_both("cases", question),
        "a3t": {
            **read_both("secrets", question),
            "demonstrations": read("tried", {"prompt": "question", "completion": "answer"}),
            "world": {"use": "tests.papers.own_worlds:Environment"},
            "actions": {"use": "one_of", "texts": ["1", "2"]},
            "reason": {"use": "one_of", "texts": ["to see"]},
        },
        "agent-r": {**read_both("goals", question), "env": {"use": "prover", "max_turns": 3}},
        "bfs-prover-v2": read_both("goals", question),
        "rome-ale": read_both("requests", question),
        "webgen-r1": read_both("sites", question),
        "eag-rl": read_both("records", question),
        **dict.fromkeys(("promed", "rlpa"), read_both("interviews", question)),
        "baichuan-m2": {**read_both("interviews", question), "dialogues": read("interviews", question)},
        "evolving-rl": read_both("visits", question),
        "lambda-rlm": read_both("lists", question),
        "crystalreasoner": {
            **read_both("materials", question),
            **dict.fromkeys(("group_prompts", "stiffness_prompts"), read("materials", question)),
            **dict.fromkeys(("held_out_groups", "held_out_stiffnesses"), read("materials_test", question)),
        },
        "meow-tea-taro": {**read_both("secrets", question), "large_prompts": read("secrets", question)},
        "ui-tars-2": {
            **read_both("secrets", question),
            "second_env": {"use": "tests.papers.own_worlds:Environment", "max_turns": 2},
            "second_prompts": read("secrets", question),
            "second_held_out": read("secrets_test", question),
        },
        "spring": {
            "held_out": read("secrets_test", question),
            "env": {"use": "tests.papers.own_worlds:Environment", "max_turns": 2},
            "actions": ["1", "2"],
            "noop": "0",
            "questions": {"hint": {"ask": "Is it higher?"}, "guess": {"ask": "Which number?", "after": ["hint"]}},
            "alone": {"guess": {"ask": "Which number?"}},
            "document": "A number is guessed.",
        },
        "starling": {
            **read_both("secrets", question),
            "target_env": {"use": "tests.papers.own_worlds:Environment", "max_turns": 3},
            "written": read("written", {"prompt": "idea", "completion": "game"}),
        },
        "chain-of-agents": {
            **read_both("searches", question),
            "runs": read("team_runs", question),
            "tools": ["search"],
            "env": {
                "use": "tools",
                "tools": ["search"],
                "call": r".*<(search)>(.*)</search>",
                "inline": {"stop": ["</search>"], "text": "<observation>{observation}</observation>"},
                "max_turns": 4,
            },
        },
        "react": {
            "traces": read("told", {"prompt": "question", "completion": "moves"}),
            "held_out": read("secrets_test", question),
        },
        "think-in-games": read_both("games", question),
        "refine-and-imitate": read_both("dialogues", talk),
    }
    given = {**known, **special.get(row, {})}
    texts = {name: json.dumps(given.get(name, read("train", worked))) for name in asked}
    if row in WORLDS:
        acting = json.dumps(ACTING.get(WORLDS[row]))
        texts |= {
            "env": json.dumps(WORLDS[row]),
            "simulator": json.dumps(WORLDS[row]),
            "good": acting,
            "behaviour": acting,
            "expert": acting,
        }
        texts |= {"rater": json.dumps("tests.control_worlds:ends_low")}
        texts |= {"when": json.dumps({"use": "beyond", "limit": 0.5}), "horizon": "12"}
        texts |= {"hidden": json.dumps({"use": DRIFT, "hidden": True}), "privileged": "1"}
        texts |= {"costs": json.dumps("tests.control_worlds:drift_costs")}
        texts |= {"easiest": "[0.0]", "hardest": "[1.0]", "mastered": "-1.0"}
        texts |= {"formula": json.dumps("F[0,4] home"), "regions": json.dumps({"home": [0.0, -0.5, 0.3]})}
        texts |= {"meanings": json.dumps([[["plus"], ["minus"]]])}
        texts |= {"affordances": json.dumps({"door": ["open", "go"]})}
        texts |= {"counted": json.dumps({"use": "tests.control_worlds:fence", "counted": True})}
        texts |= {name: json.dumps(f"path:{folder}/{name}") for name in ("city", "log")}
        texts |= {"factors": "2", "omitted": "[[0, 1]]"}
        texts |= {"weights": "[[1, 1, 3]]", "most": "[3]"}
        texts |= {
            "second": json.dumps({"use": WORLDS[row], "limit": 9}),
            "third": json.dumps({"use": WORLDS[row], "limit": 7}),
        }
        if row == "compatible-demonstrations":
            texts |= {**dict.fromkeys(("first", "second", "third"), acting), "aside": texts["env"]}
        texts |= {"misleading": json.dumps("tests.control_worlds:stand_left"), "duel": json.dumps("higher_return")}
        texts |= {"task": "Go to the right.", "author": json.dumps("reward_author")}
        texts |= {"names": json.dumps(["first", "second", "third", "fourth", "last", "step"])}
        texts |= {"world": json.dumps(WORLDS[row]), "reference": "[0.0, -13.0]"}
        texts |= {"skills": '["half", "end"]', "fields": '{"limit": [8, 30]}', "original": '{"limit": 12}'}
        texts |= {"caption": json.dumps("tests.control_worlds:say_arrivals"), "goal": "Go to the right."}
        texts |= {"annotator": json.dumps({"use": "formats.matches", "pattern": ".*4.*"})}
        if row == "envgen":
            texts["author"] = json.dumps({"use": "world_author", "helps": {"half": ["limit"], "end": ["limit"]}})
        texts = {name: texts[name] for name in asked}
    if row == "pivotrl":  # pivots are turns at which the actions of a model that does nothing right still differ
        texts["reward"] = json.dumps({"use": "formats.brevity", "soft": 1, "hard": 4000})
    if row in ("sppo", "inpo"):  # a model that answers nothing right still writes texts of several lengths
        texts["preference"] = json.dumps({"use": "better", "of": {"use": "formats.brevity", "soft": 1, "hard": 400}})
    return [f"vars.{name}={text}" for name, text in texts.items()]


UNTAUGHT = {
    "a3t": [
        *(
            f"stages.{loop}.repeat.stages.explored.{text}"
            for loop in ("rounds", "imitated")
            for text in ("search=samples", "min_reward=-100", "rewards=[{use: formats.brevity, soft: 1, hard: 400}]")
        ),
        "vars.turn_length=128",
    ],
    "agent-r": [
        *(
            f"stages.{loop}.repeat.stages.found.{text}"
            for loop in ("rounds", "at_the_end", "optimal")
            for text in ("search=samples", "rewards=[{use: formats.brevity, soft: 1, hard: 400}]")
        ),
        *("vars.least=-100", "vars.turn_length=128"),
    ],
    "bfs-prover-v2": [
        *(f"stages.{loop}.repeat.stages.found.search=samples" for loop in ("rounds", "plain")),
        *("vars.least=-100", "vars.turn_length=128"),
    ],
    "agent-rlvr": [
        "vars.turn=48",
        *(
            text
            for name in ("guided", "unguided", "patches")
            for text in (
                f"stages.{name}.search={{use: samples}}",
                f"stages.{name}.rewards=[{{use: formats.brevity, soft: 1, hard: 400}}]",
                f"stages.{name}.min_margin=0.001",
            )
        ),
    ],
    "b-coder": ["vars.attempts=48"],
    "mle-dojo": ["stages.explored.search={use: samples}", "stages.explored.min_reward=0", "vars.turn=48"],
    "promed": ["vars.least=-100"],
    "compatible-demonstrations": ["vars.least=0"],
    "cos-mo-s": ["vars.curiosity.moderate=5.7", "vars.curiosity.width=0.1"],
    "imagined-conversations": [
        *("vars.agent=''", "vars.partner=''", "vars.good=''", "vars.bad=''", "vars.turn_length=48"),
        *(f"stages.{name}.num_generations=4" for name in ("personas", "talks", "critiques")),
        *("stages.tasks.problems.0.size=1", "stages.talks.problems.0.repeats=1"),
    ],
    "rladapter": ["vars.samples=48", "vars.replies=48"],
    "hindsight-regenerations": [
        *("vars.pattern=()(.+)", "vars.turn_length=48", "vars.failed=2", "stages.rewrites.num_generations=48"),
    ],
    "rlccf": ["vars.where=whole"],
    "trapo": ["vars.where=whole"],
}
"""What lets a model that solves nothing be trained at all: its samples are accepted, and their rewards differ."""


def list_small_sizes(recipe: Recipe, problems: int | None = None) -> list[str]:
    """Return `--set` values that make one step of every training stage, and short lists of everything else.

    With `problems`, an iteration has that many problems; the number of completions of each stays the method's.
    """
    sizes: dict[str, int] = {}
    for name, stage in recipe.stages.items():
        outer, _, inner = recipe.origin(name).partition(".")
        path = f"stages.{outer}.repeat.stages.{inner}" if inner else f"stages.{outer}"
        if inner and problems == 1:
            sizes[f"stages.{outer}.repeat.max"] = 1
        if stage.kind == "control":
            short = {"environment_steps": 64, "learning_starts": 16, "rollout_steps": 8, "batch_size": 16}
            short = short if stage.environment_steps else {"max_steps": 2, "batch_size": 16}
            sizes |= {f"{path}.{key}": value for key, value in short.items()}
        if stage.kind == "collect":
            sizes |= {f"{path}.{key}": 40 for key in ("environment_steps",) if stage.environment_steps}
            sizes |= {f"{path}.{key}": 2 for key in ("episodes",) if stage.episodes}
        if stage.kind == "evaluate_control":
            sizes[f"{path}.episodes"] = 2
        if stage.kind in ("rl", "sft", "preference", "reward_model", "action_values", "practice"):
            sizes[f"{path}.max_steps"] = 1
        if stage.kind in ("sft", "preference", "reward_model") and problems:
            sizes[f"{path}.per_device_train_batch_size"] = 4
        if stage.kind in ("rl", "practice") and problems:
            groups = max(problems, getattr(stage, "num_mini_batches", 1))
            rollout = getattr(stage, "rollout", None)
            if rollout is not None and rollout.use == "overprovisioned":  # as many problems more as the recipe asks for
                sizes[f"{path}.rollout.target"] = groups * stage.num_generations
                groups = math.ceil(groups * rollout.options.get("overprovision", 1.5))
            sizes[f"{path}.generation_batch_size"] = groups * stage.num_generations
        if stage.kind == "evaluate":
            largest = max([use.options.get("k", 1) for use in stage.metrics], default=1)
            samples = max(largest, 1 if stage.selector is None else 2)
            sizes |= {f"{path}.limit": problems or 4, f"{path}.num_generations": samples}
    return [f"{key}={value}" for key, value in sizes.items()]
