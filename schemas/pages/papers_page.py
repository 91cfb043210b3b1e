"""docs/papers.md: published systems as recipes, with what is proven of each.

`python -m schemas.pages.papers_page` prints it.

A paper is on the page when it has both a recipe and a test that proves its mechanism. The title is the first
paragraph of the recipe's header; what is proven is the first paragraph of the test's docstring, and what is not, the
paragraph that begins with `Not shown:`. Both are read as text: nothing of theirs is imported.
"""

import ast
import json
import re
from pathlib import Path

from schemas.package import ROOT
from schemas.pages.evidence import OUT_OF_DATE, VERDICTS, is_current, read_evidence, write_interval
from schemas.source.extend import read_recipe

INTRODUCTION = """# Papers

<!-- Written by `make docs` from recipes/papers/ and the docstrings of tests/papers/. Edit those. -->

Each of these published systems is a recipe that runs on one core (`--profile tiny`) and is sized for GPUs
(`--profile full`). Its test proves the paper's own mechanism by numbers, through the functions that the recipe names;
it does not repeat the paper's experiments, and *not shown* says what is left. *outcome*: the method against its
comparator at this size, over several seeds ([evidence.md](evidence.md)). *own model*: `--profile own` trains your
model on your problems, or a policy for your environment ([using-a-paper.md](using-a-paper.md)).

    posttrain run recipes/papers/<id>.yaml --profile tiny
    pytest tests/papers/test_paper_<id>.py
"""


def make_papers_page(house: Path = ROOT) -> str:
    """Return the page as Markdown, papers in the order of their ids."""
    lines = ["| paper | recipe | proven | outcome | not shown | own model |", "|---|---|---|---|---|---|"]
    for recipe in sorted((house / "recipes" / "papers").glob("*.yaml")):
        test = house / "tests" / "papers" / f"test_paper_{recipe.stem.replace('-', '_')}.py"
        if test.is_file():
            title, (proven, missing) = read_title(recipe), read_proof(test)
            links = f"{link_recipe(house, recipe)} | [{strip_title(title, proven)}]"
            outcome, own = describe_outcome(house, recipe.stem), supports_own(recipe)
            lines.append(f"| {title} | {links}(../tests/papers/{test.name}) | {outcome} | {missing} | {own} |")
    return "\n".join([INTRODUCTION, count_levels(house), *lines]) + "\n"


def count_levels(house: Path) -> str:
    """Return how many recipes have reached each level, counted from files that `make` checks, as a list."""
    rows = [recipe.stem for recipe in sorted((house / "recipes" / "papers").glob("*.yaml"))]
    broken = [row for row in rows if (house / "tests" / "papers" / "mutants" / f"{row}.yaml").is_file()]
    verdicts = [verdict for row in rows if (verdict := read_verdict(house, row))]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys((*VERDICTS, *verdicts)))
    compared = [row for row in rows if (house / "docs" / "fidelity" / f"{row}.yaml").is_file()]
    own = [row for row in rows if supports_own(house / "recipes" / "papers" / f"{row}.yaml") == "yes"]
    record = house / "docs" / "own_model.json"
    ran = set(json.loads(record.read_text(encoding="utf-8"))) & set(own) if record.is_file() else set()
    return f"""Of {len(rows)} recipes

- {len(broken)} have breaks of recipe and code on purpose that their tests notice (`make mutants`);
- {len(verdicts)} have an outcome over several seeds against a comparator ([evidence](evidence/README.md)): {counts};
- {len(compared)} have constants and formulas compared with equations or released code ([fidelity](fidelity/README.md));
- {len(own)} take a model and problems, or an environment, of yours (`--profile own`);
- {len(ran)} of these ran on SmolLM2-135M-Instruct with a foreign data set ([own_model.json](own_model.json)).
"""


def read_verdict(house: Path, row: str) -> str:
    """Return the verdict of a recipe's evidence, `out of date` if its recipe has changed since, or nothing."""
    file = house / "docs" / "evidence" / f"{row}.json"
    if not file.is_file():
        return ""
    evidence = read_evidence(file)
    current = is_current(evidence, house / "recipes" / "outcomes" / f"{row}.yaml")
    return evidence.verdict if current else OUT_OF_DATE


def link_recipe(house: Path, recipe: Path) -> str:
    """Return links to a recipe and, if there is one, to its comparison with the paper."""
    link = f"[{recipe.stem}](../recipes/papers/{recipe.name})"
    compared = (house / "docs" / "fidelity" / recipe.name).is_file()
    return f"{link}, [fidelity](fidelity/README.md#{recipe.stem})" if compared else link


def describe_outcome(house: Path, row: str) -> str:
    """Return the verdict of a recipe's evidence with the difference, linked, or a dash."""
    verdict = read_verdict(house, row)
    if not verdict:
        return "—"
    difference = write_interval(read_evidence(house / "docs" / "evidence" / f"{row}.json"))
    return f"[{verdict}](evidence/README.md#{row}): {difference}"


def supports_own(recipe: Path) -> str:
    """Return `yes` if the recipe has the profile `own`."""
    profiles = read_recipe(recipe).get("profiles")
    return "yes" if profiles is not None and profiles.get("own") is not None else "—"


def read_title(recipe: Path) -> str:
    """Return the first paragraph of the header that is meant for readers; raise ValueError if there is none."""
    lines: list[str] = []
    for line in recipe.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or (lines and not text):
            break
        if text and not text.startswith("yaml-language-server:"):
            lines.append(text)
    if not lines:
        raise ValueError(f"{recipe}: the header must begin with the paper's title")
    return flatten(" ".join(lines))


def read_proof(test: Path) -> tuple[str, str]:
    """Return what a test's docstring says is proven, and what is not shown; raise ValueError without a docstring."""
    docstring = ast.get_docstring(ast.parse(test.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{test}: the docstring must say what is proven")
    paragraphs = [flatten(paragraph) for paragraph in docstring.split("\n\n")]
    missing = [p.removeprefix("Not shown:").strip() for p in paragraphs[1:] if p.startswith("Not shown:")]
    return paragraphs[0], (capitalise(missing[0]) if missing else "—")


def strip_title(title: str, proven: str) -> str:
    """Return what is proven without a leading title: the longest beginning, up to a colon, that begins the title."""
    ends = [match.start() for match in re.finditer(r": ", proven)]
    names = [end for end in ends if normalise(title).startswith(normalise(proven[:end]))]
    return capitalise(proven[max(names) + 2 :] if names else proven)


def capitalise(text: str) -> str:
    """Return the text with a capital."""
    return text[:1].upper() + text[1:]


def normalise(text: str) -> str:
    """Return the letters and digits in lower case."""
    return re.sub(r"[^\w]+", " ", text.casefold()).strip()


def flatten(text: str) -> str:
    """Return the text on one line, fit for a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    print(make_papers_page(), end="")
