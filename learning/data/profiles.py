"""Profiles that a turn states before what it says: `<profile>city=rome, pet=cat</profile>Try the zoo.`"""

import re
from collections.abc import Mapping

PAIR = re.compile(r"\s*([^=,;<>\s]+)\s*=\s*([^=,;<>]*[^=,;<>\s])\s*")


def split_profile(turn: str, tag: str) -> tuple[dict[str, str] | None, str]:
    """Return the profile that a turn states, and the rest of it; None if it does not begin with one.

    Entries are `slot=value`, separated by commas; what is no entry is left out, and of two for a slot the last counts.
    """
    text = turn.strip()
    if not text.startswith(f"<{tag}>") or f"</{tag}>" not in text:
        return None, text
    inside, _, rest = text.removeprefix(f"<{tag}>").partition(f"</{tag}>")
    pairs = [PAIR.fullmatch(part) for part in inside.split(",")]
    return {pair[1]: pair[2] for pair in pairs if pair}, rest.strip()


def write_profile(profile: Mapping[str, str], tag: str) -> str:
    """Return the beginning of a turn that states a profile."""
    return f"<{tag}>{', '.join(f'{slot}={value}' for slot, value in profile.items())}</{tag}>"


def compute_profile_f1(inferred: Mapping[str, str], true: Mapping[str, str]) -> float:
    """Return the F1 score of the slots with their values: 0 if none of them is right."""
    same = sum(true.get(slot, "").casefold() == value.casefold() for slot, value in inferred.items())
    return 2 * same / (len(inferred) + len(true)) if same else 0.0
