"""Answers that attack who reads them: evaluators, parsers, pattern matching, and the score itself. Seeded."""

import random

MARK = "canary_5f3a"
"""In every text that does something when it is evaluated: what runs it can be seen to run it."""

DEEDS = (
    "open('{path}','w')",
    "__import__('os').system('touch {path}')",
    "__import__('os').mkdir('{path}')",
    "__import__('pathlib').Path('{path}').touch()",
    "__import__('os').environ.update({mark}='1')",
    "setattr(__import__('sys'), '{mark}', 1)",
    "exec('import sys; sys.{mark} = 1')",
    "eval(compile('open(\\'{path}\\',\\'w\\')','','eval'))",
    "globals().update({mark}=1)",
    "__import__('ctypes').CDLL(None).system(b'touch {path}')",
    "__import__('subprocess').run(['touch', '{path}'])",
    "().__class__.__base__.__subclasses__()[-1].{mark}",
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0](['touch', '{path}'])",
    "print.__self__.__import__('os').system('touch {path}')",
    "exit('{mark}')",
    "quit('{mark}')",
    "__import__('os')._exit({mark!r}.__len__())",
    "__import__('os').kill(__import__('os').getppid(), 9, {mark!r})",
    "__import__('socket').create_connection(('127.0.0.1', 1), {mark!r})",
    "__import__('os').write(3, b'score 1.0\\n{mark}')",
)
FRAMES = (
    "{deed}",
    "[{deed}]",
    "[[{deed}]]",
    "({deed},)",
    "(lambda: {deed})()",
    "(x := {deed})",
    "[{deed} for _ in (1,)]",
    "{{{deed}: 1}}",
    "f'{{{deed}}}'",
    "1 if {deed} else 2",
    "x**2 + {deed}",
    "sin({deed})",
    "Symbol('{deed_in_quotes}')",
    "sympify('{deed_in_quotes}')",
    "parse_expr('{deed_in_quotes}')",
    "S('{deed_in_quotes}')",
    "x.subs(x, {deed})",
    "Lambda(x, {deed})(1)",
    "lambdify(x, '{deed_in_quotes}')(1)",
    "24 #{deed}",
    "24\n{deed}",
    "\\boxed{{{deed}}}",
    "'{{0.__class__.__init__.__globals__[{mark}]}}'.format(x)",
    "[str.format('{{0.__class__}} {mark}', 1), {deed}]",
    "@{deed}",
    "await {deed}",
    "not {deed}",
    "{deed}!",
    "0.[{deed}]",
)
BOMBS = (
    "9**9**9**9",
    "9**9**9",
    "((9**99)**99)**99",
    "2**(x-x+10**10)",
    "factorial(10**9)",
    "9!!!!!!",
    "1e999999999",
    "1E+999999999999",
    "-1e999",
    "nan",
    "NaN",
    "inf",
    "-Infinity",
    "[NaN]",
    "[Infinity, -Infinity]",
    "1/0",
    "0**-1",
    "x**x**x**x**x**x",
    "[0]*10**10",
    "'a'*10**10",
    "[[[[[[[0]*99]*99]*99]*99]*99]*99]*99",
    "range(10**12)",
    "(1).__pow__(10**9)",
    "exp(exp(exp(exp(99))))",
    "integrate(exp(x**x), x)",
    "Sum(1/x, (x, 1, 10**9)).doit()",
    "solve(x**99 - x - 1, x)",
    "(x+1)**5000 - (x-1)**5000",
    "sin(" * 150 + "x" + ")" * 150,
    "cos(x)**999*sin(x)**999",
    "9" * 4301,
    "9" * 100_000,
    "-" + "9" * 5000,
    "0." + "3" * 50_000,
    "1_" * 3000 + "1",
    "0x" + "f" * 9000,
    "1e" + "9" * 4500,
    "9" * 4400 + "/" + "7" * 4400,
    "1/3" * 2000,
    "\u0661" * 5000,
    "\uff11\uff12",
    "²³",
    "½",
    "+" * 9999 + "1",
    "~" * 5000 + "1",
    "(" * 100_000,
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "{" * 50_000,
    '{"a":' * 30_000 + "1" + "}" * 30_000,
    "[" * 190 + "]" * 190,
    "(" * 190 + "1" + ")" * 190,
    "¬" * 50_000 + "P",
    "P∧" * 3000 + "P",
    "(" * 900 + "P" + ")" * 900,
    "x" * 1_000_000,
    "\n" * 200_000,
    " " * 500_000 + "1",
    "1 " * 300_000,
    "1,2" * 100_000,
    "A=1," * 50_000,
    "1×" * 20_000 + "1",
    "a" * 50_000 + "!",
    "1.1" * 50_000,
    "0.0.0.0" * 9000,
    "move(" * 40_000,
    "<answer>" * 50_000,
    "{}" * 50_000,
    '"' * 99_999,
    "R99999999",
    "R2 " * 3000,
    "U" * 3000,
    "A+999999999 " * 500,
    "F+1" * 40_000,
    "Move disk 1 from Peg 1 to Peg 2\n" * 4000,
    "fill A " * 9000,
    '["fill A"]' * 2000,
    '["pour A->A", "pour A->Z", 1, null, {}]',
    '["w,A1,A1"]',
    '["w,A1"]',
    '[["a"], 1]',
    "\x00",
    "1\x002",
    "\ud800",
    "\udfff1",
    "\u202e1",
    "\u200b24",
    "\ufeff1",
    "a\u0301" * 500,
    "\U0001f4a9" * 999,
    "\r\n\r\n",
    "\t",
    "0",
    "{}",
    "[]",
    "()",
    "null",
    "true",
    "None",
    "True",
    "[[]]",
    "[{}]",
    "{[]}",
    '"',
    "'",
    "\\",
    "#",
    "0x",
    "0b2",
    "1..2",
    ".",
    "-",
    "%s%s%s%n",
    "{0.__class__}",
    "${env:HOME}",
    "$(id)",
    "`id`",
    "; rm -rf .",
    "<script>",
    "../../etc/passwd",
    "I do not know.",
    '{"a": [1, {"b": null}]}',
    '{"0": {}}',
    '[{"Agent[0.5, 0.5]": 1}]',
    '{"__class__": "x"}',
    "1:2:3:4:5",
    "99999999 days, 99:99",
    "-1:-1",
)


def hostile(count: int, seed: str, path: str, right: str) -> list[str]:
    """`count` attacks; `path` is what they try to make, `right` an answer for those that are nearly right."""
    chance = random.Random(seed)
    texts = [near(chance, right) for _ in range(count // 10)]
    while len(texts) < count:
        texts += [evaluated(chance, path), chance.choice(BOMBS) if chance.random() < 0.8 else garbage(chance)]
    return texts[:count]


def evaluated(chance: random.Random, path: str) -> str:
    """A text that does something if it is evaluated."""
    deed = chance.choice(DEEDS).format(path=f"{path}_{MARK}", mark=MARK)
    quoted = deed.replace("\\", "\\\\").replace("'", "\\'")
    return chance.choice(FRAMES).format(deed=deed, deed_in_quotes=quoted, mark=MARK)


def near(chance: random.Random, right: str) -> str:
    """The right answer with something in it that does not belong there."""
    place = chance.randrange(len(right) + 1)
    more = chance.choice(
        ["\x00", "\ud800", "9" * 5000, "[", ")", "e999", "nan", "\n", "\u202e", ".", right * 50, "{}", ",", "=", "/0"]
    )
    return right[:place] + more + right[place + chance.randrange(2) :]


def garbage(chance: random.Random) -> str:
    """Any characters."""
    return "".join(
        chr(chance.choice([chance.randrange(128), chance.randrange(0x3000)])) for _ in range(chance.randrange(400))
    )
