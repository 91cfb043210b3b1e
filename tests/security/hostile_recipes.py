"""Recipes that want too much: each a folder's worth of files, made here, so that none of megabytes lies in the tree."""

import random
from collections.abc import Iterator

import yaml

from tests.security.hostile_texts import of_bytes, of_overrides, of_schedules
from tests.security.hostile_values import HEAD, RICH, VALUES, Hostile, paths, replaced


def written() -> Iterator[Hostile]:
    """Those that each want something of their own."""
    yield from _that_grow()
    yield from _of_parents()
    yield from of_schedules()
    yield from of_bytes()
    yield from _of_many_errors()
    yield from _of_nonsense()
    yield from of_overrides()


def _that_grow() -> Iterator[Hostile]:
    big = "x" * 90_000
    tags = ", ".join(['"${vars.big} ${vars.big}"'] * 20_000)
    yield Hostile("tags of a big variable", f"vars: {{big: {big}}}\ntags: [{tags}]\n{HEAD}")
    tags = ", ".join(['"${vars.big}"'] * 1500)
    yield Hostile("tags that are a big variable", f"vars: {{big: {big}}}\ntags: [{tags}]\n{HEAD}")
    yield Hostile("aliases of a big text", f"x-a: &a {'x' * 800_000}\ntags: [{'*a, ' * 1500}]\n{HEAD}")
    doubled = "".join(f"  v{i}: ['${{vars.v{i - 1}}}', '${{vars.v{i - 1}}}']\n" for i in range(1, 40))
    yield Hostile("variables that double", f"vars:\n  v0: [1]\n{doubled}{HEAD}")
    doubled = "".join(f"  v{i}: '${{vars.v{i - 1}}}${{vars.v{i - 1}}}'\n" for i in range(1, 40))
    yield Hostile("texts that double", f"vars:\n  v0: abc\n{doubled}{HEAD}")
    deep = "".join(f"  v{i}: {'[' * 30}'${{vars.v{i - 1}}}'{']' * 30}\n" for i in range(1, 30))
    yield Hostile("variables that nest", f"vars:\n  v0: 1\n{deep}tags: ['${{vars.v29}}']\n{HEAD}")
    chain = "".join(f"  v{i}: ${{vars.v{i + 1}}}\n" for i in range(1000)) + "  v1000: 1\n"
    yield Hostile("a chain of variables", f"vars:\n{chain}{HEAD}")
    yield Hostile(
        "a wide variable, many times",
        f"vars: {{w: [{'1, ' * 1900}]}}\n{HEAD}"
        + "".join(f"  e{i}: {{kind: python, function: {{use: 'os:getcwd', a: '${{vars.w}}'}}}}\n" for i in range(500)),
    )
    axes = ", ".join(f"a{i}: [{', '.join(map(str, range(16)))}]" for i in range(8))
    yield Hostile("axes of a matrix", f"{HEAD}  s: {{kind: sft, model: base, data: problems, matrix: {{{axes}}}}}\n")
    lonely = ", ".join(f"axis_number_{i}: [value]" for i in range(1500))
    yield Hostile("axes of one value", f"{HEAD}  s: {{kind: sft, model: base, data: problems, matrix: {{{lonely}}}}}\n")
    for count, wide, stages in ((100, 256, 40), (100, 1, 11), (100, 256, 1), (2, 256, 2), (100, 100, 100)):
        values = ", ".join(map(str, range(wide)))
        inner = "".join(
            f"        s{i}: {{kind: sft, model: base, data: problems, matrix: {{a: [{values}]}}}}\n"
            for i in range(stages)
        )
        loop = f"  loop:\n    repeat:\n      max: {count}\n      stages:\n{inner}"
        yield Hostile(f"a loop of {count} x {wide} x {stages}", HEAD + loop)
    values = ", ".join(map(str, range(250)))
    fans = "".join(f"  s{i}: {{kind: sft, model: base, data: problems, matrix: {{a: [{values}]}}}}\n" for i in range(3))
    models = ", ".join(f"m{i}: s{i % 3}" for i in range(1800))
    yield Hostile(
        "variants in every model", f"{HEAD}{fans}  e: {{kind: evaluate, models: {{{models}}}, prompts: problems}}\n"
    )
    many = "".join(f"  s{i}: {{kind: init}}\n" for i in range(1001))
    yield Hostile("a thousand and one stages", HEAD + many)
    yield Hostile(
        "an endpoint in many places",
        "endpoints: {t: {base_url: 'http://h/v1', model: m, extra: {a: ["
        + "1, " * 1900
        + "]}}}\n"
        + HEAD
        + "".join(
            f"  e{i}: {{kind: evaluate, model: base, prompts: problems, "
            "rewards: [{use: judges.endpoint, endpoint: t}]}\n"
            for i in range(300)
        ),
    )
    tasks = ", ".join(f"{{use: reasoning_gym, family: chain_sum, size: {i}, split: test}}" for i in range(1, 400))
    evals = "".join(
        f"  e{i}: {{kind: evaluate, model: base, tasks: [{tasks.replace('test', 'train') if i % 2 else tasks}]}}\n"
        for i in range(8)
    )
    clean = "".join(f"  c{i}: {{kind: curate, data: problems}}\n" for i in range(300))
    yield Hostile("every curation against every task", HEAD + evals + clean, refused=False)
    backwards = "".join(
        f"  s{i}: {{kind: sft, model: {f's{i + 1}' if i < 990 else 'base'}, data: problems}}\n" for i in range(991)
    )
    yield Hostile("a chain of stages, written backwards", HEAD + backwards)
    after = "".join(f"  s{i}: {{kind: init, after: [{', '.join(f's{j}' for j in range(i))}]}}\n" for i in range(300))
    yield Hostile("every stage after all others", HEAD + after, refused=False)
    yield Hostile(
        "a matrix of long values", f"{HEAD}  s: {{kind: init, matrix: {{a: ['{'x' * 100_000}', b]}}}}\n", refused=False
    )


def _of_parents() -> Iterator[Hostile]:
    levels = {f"e{i}.yaml": f"extends: [e{i + 1}.yaml, e{i + 1}.yaml]\n" for i in range(24)} | {"e24.yaml": HEAD}
    yield Hostile("a diamond of 24 levels", "extends: [e0.yaml, e0.yaml]\n", levels, refused=False)
    chain = {f"e{i}.yaml": f"extends: e{i + 1}.yaml\n" for i in range(100)} | {"e100.yaml": HEAD}
    yield Hostile("a hundred parents", "extends: e0.yaml\n", chain)
    yield Hostile("one parent a thousand times", f"extends: [{'e.yaml, ' * 1000}]\n", {"e.yaml": HEAD})
    wide = "x-a:\n" + "".join(f"  k{i}: {i}\n" for i in range(1900))
    yield Hostile("a wide parent, often", f"extends: [{'e.yaml, ' * 60}]\n", {"e.yaml": wide + HEAD})
    big = "".join(f"x-{j}: [{'1, ' * 1900}]\n" for j in range(25))
    yield Hostile(
        "large parents", f"extends: [{'.yaml, '.join('abcde')}.yaml]\n", {f"{n}.yaml": big + HEAD for n in "abcde"}
    )
    yield Hostile("itself", "extends: r.yaml\n")
    yield Hostile("two in a circle", "extends: e.yaml\n", {"e.yaml": "extends: r.yaml\n"})
    wrong = [
        "/dev/zero",
        "/dev/stdin",
        "/dev/tty",
        "/dev/full",
        "/proc/self/mem",
        "/proc/kmsg",
        "/proc/self/environ",
        ".",
        "..",
        "/",
        "~",
        "''",
        "null",
        "7",
        "{a: 1}",
        "[[]]",
        r'"a\0b"',
        "a" * 5000,
        "a/" * 3000,
        "/etc/shadow",
        "../" * 200 + "etc/passwd",
        r'"\n"',
        "pipe",
        "circle",
        "nowhere",
        "socket",
        "r.yaml/x",
    ]
    for index, target in enumerate(wrong):
        yield Hostile(
            f"extends {index}: {target[:20]}", f"extends: {target}\n{HEAD}", refused=target not in ("''", "null")
        )


def _of_many_errors() -> Iterator[Hostile]:
    def evaluation(tasks: str) -> str:
        return f"{HEAD}  e: {{kind: evaluate, model: base, tasks: [{tasks}]}}\n"

    for count in (1500, 8000):
        yield Hostile(f"{count} wrong tasks", evaluation(", ".join(f"{{usee: gym{i}}}" for i in range(count))))
        yield Hostile(f"{count} unknown tasks", evaluation(", ".join(f"reasoning_gymm{i}" for i in range(count))))
        yield Hostile(
            f"{count} wrong options",
            evaluation(", ".join(f"{{use: reasoning_gym, famly: a, size: b, split{i}: c}}" for i in range(count))),
        )
        yield Hostile(
            f"{count} unknown keys",
            f"{HEAD}  e: {{kind: sft, {', '.join(f'learning_ratte{i}: 1' for i in range(count))}}}\n",
        )
        yield Hostile(
            f"{count} unknown stages",
            f"{HEAD}  e: {{kind: init, after: [{', '.join(f'bass{i}' for i in range(count))}]}}\n",
        )
        yield Hostile(
            f"{count} wrong components",
            f"{HEAD}  e: {{kind: rl, model: base, prompts: problems, max_steps: 1, "
            f"rewards: [answers.exact], algorithm: grpo, "
            f"loss_terms: [{', '.join(['{use: kl, coef: [a]}'] * count)}]}}\n",
        )
    long = [f"{'a' * 60}{i}" for i in range(900)]
    yield Hostile(
        "long names and words like them", "stages:\n" + "".join(f"  {n}: {{kind: init, after: [{n}x]}}\n" for n in long)
    )
    yield Hostile("stages without a kind", "stages:\n" + "".join(f"  s{i}: {{}}\n" for i in range(990)))
    yield Hostile("kinds like kinds", "stages:\n" + "".join(f"  s{i}: {{kind: evaluat{i}}}\n" for i in range(990)))
    yield Hostile(
        "a word like two thousand variables",
        "vars: {"
        + ", ".join(f"{'v' * 80}{i}: 1" for i in range(1900))
        + "}\n"
        + HEAD
        + "  s: {kind: '${vars."
        + "v" * 85
        + "}'}\n",
    )
    yield Hostile("unknown functions of many modules", evaluation(", ".join(f"'{m}:f'" for m in _modules())))


def _modules() -> list[str]:
    large = [
        "typing",
        "argparse",
        "tarfile",
        "inspect",
        "socket",
        "turtle",
        "doctest",
        "pydoc",
        "ssl",
        "subprocess",
        "zipfile",
        "datetime",
        "decimal",
        "enum",
        "logging",
        "pathlib",
        "pickle",
        "pdb",
        "random",
        "smtplib",
        "statistics",
        "threading",
    ]
    return (
        large
        + [f"email.{m}" for m in ("message", "header", "charset", "parser")]
        + [f"no_module_{i}" for i in range(300)]
    )


def _of_nonsense() -> Iterator[Hostile]:
    rl = {"algorithm": "algorithm: grpo", "rewards": "rewards: [answers.exact]", "max_steps": "max_steps: 1"}
    values = [
        "algorithm: {a: 1}",
        "algorithm: [grpo]",
        "algorithm: 7",
        "temperature: 1e308",
        "temperature: 101",
        "max_steps: 1e9999",
        "learning_rate: 1e300",
        "num_generations: 9000000000000000000",
        "rollout: {use: start, running: -1}",
        "rewards: [{use: formats.matches, pattern: '(('}]",
        "rewards: [{use: formats.matches, pattern: '[[a]'}, 7]",
        f"rewards: [{{use: formats.matches, pattern: '{'(' * 3000}'}}]",
        "rewards: [{use: formats.matches, pattern: 'a{99999999999}'}]",
        f"rewards: [{{use: formats.matches, pattern: '(?i){'[a-z]' * 150}'}}]",
        "resources: {memory: '" + "9" * 400 + "GB'}",
        "resources: {num_cpus: 1e308}",
        "resources: {rollout: {workers: 1000000000}}",
        "timeout: 1e300",
        "retries: -1",
        "seed: 99999999999",
        "rewards: [{use: '\u0663:f'}]",
        "rewards: [{use: ':'}]",
        "rewards: [{use: '..'}]",
    ]
    for index, one in enumerate(values):
        keys = ", ".join((rl | {one.partition(":")[0]: one}).values())
        yield Hostile(f"rl {index}: {one[:50]}", f"{HEAD}  s: {{kind: rl, model: base, prompts: problems, {keys}}}\n")
    sizes = ["many", "-1", "0", "1.5", "true", "[1]", "{a: 1}", "'64'", "1000000000", "1e308", "''"]
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        for size in sizes:
            yield Hostile(
                f"{key}: {size}",
                f"name: a\nstages: {{base: {{kind: init, config: {{model_type: qwen3, {key}: {size}}}}}}}\n",
            )
    loop = (
        "  l: {{repeat: {{max: 2, until: '{}', stages: {{e: {{kind: evaluate, model: base, prompts: problems}}}}}}}}\n"
    )
    for until in (
        "e.accuracy > 1e999",
        "e.accuracy > .",
        "e.accuracy > 1" + "0" * 500,
        "e.accuracy > ²",
        " " * 50_000,
        "a" * 90_000,
        "e" + ".a" * 40_000 + " > 1",
        "> 1",
        "e.accuracy >> 1",
        "e.accuracy > nan",
    ):
        yield Hostile(f"until {until[:20]}", HEAD + loop.format(until))


def replacements() -> list[tuple[tuple[str | int, ...], str]]:
    """Every place of a value in a rich recipe with every hostile value, by its name."""
    return [(path, name) for path in paths(yaml.safe_load(RICH)) for name in VALUES]


def sampled(count: int, seed: int) -> Iterator[Hostile]:
    """The written ones, and of the others as many as make `count` in all."""
    own = list(written())
    yield from own
    every, tree = replacements(), yaml.safe_load(RICH)
    for path, name in random.Random(seed).sample(every, min(len(every), max(0, count - len(own)))):
        yield Hostile(f"{'.'.join(map(str, path))} = {name}", replaced(tree, path, VALUES[name]), refused=False)
