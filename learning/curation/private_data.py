"""Filters for what must not be trained on: personal data and secrets, by patterns, and rows without a free licence."""

import ipaddress
import json
import re
from collections.abc import Callable, Iterator

from learning.curation.row_filters import Part, get_text
from learning.data.rows import Row
from schemas.private_data import Private

PATTERNS: dict[Private, re.Pattern[str]] = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])"),
    "phone": re.compile(r"(?<![\w.+])\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,5}(?!\w)"),
    "iban": re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)"),
    "card": re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])"),
    "ip_address": re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)"),
    "key": re.compile(
        r"-----BEGIN (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----"
        r"(?:(?:(?!-----)[\s\S])*-----END (?:[A-Z]{1,12} ){0,3}PRIVATE KEY-----|(?:\s*[A-Za-z0-9+/=\\]{40,})*)"
    ),
    "token": re.compile(
        r"(?<!\w)(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|"
        r"xox[abprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{35}|glpat-[A-Za-z0-9_-]{20,})(?!\w)"
    ),
    "password": re.compile(
        r"(?i)(?<!\w)(?:password|passwd|api[_-]?key|secret)[\"']?\s{0,4}[=:]\s{0,4}[\"']"
        r"(?![\[<{]{1,2}[\w-]{1,40}[\]>}]{1,2}[\"'])(?P<private>[^\"'\s]{6,})"  # no placeholder such as `[PASSWORD]`
    ),
}
"""What each kind of private data looks like; numbers are also checked by their own rules. The group `private` is the
part that is private, if it is not all."""


def without_private_data(row: Row, *, kinds: list[Private] | None = None, part: Part = "all") -> bool:
    """Keep rows without e-mail addresses, telephone numbers, accounts, addresses of machines, keys and passwords.

    `kinds` are those that are looked for; null: all. Telephone numbers count with their country code (`+49 …`), card
    numbers and IBANs with a valid checksum, IP addresses if they are public. Patterns find what has such a form only:
    names and street addresses stay.
    """
    text = get_text(row, part)
    return not any(next(find_spans(kind, text), None) for kind in kinds or PATTERNS)


def find_spans(kind: Private, text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each span of private data of a kind, in order."""
    is_valid = CHECKS.get(kind)
    group = "private" if "private" in PATTERNS[kind].groupindex else 0
    for match in PATTERNS[kind].finditer(text):
        if is_valid is None or is_valid(match[0]):
            yield match.span(group)


def _is_card(text: str) -> bool:
    """Return whether digits have a valid checksum (Luhn, ISO/IEC 7812)."""
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(text: str) -> bool:
    """Return whether an account number has a valid checksum (ISO 13616)."""
    plain = text.replace(" ", "")
    return 15 <= len(plain) <= 34 and int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def _is_public(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


CHECKS: dict[Private, Callable[[str], bool]] = {"card": _is_card, "iban": _is_iban, "ip_address": _is_public}


def licensed(row: Row, *, allowed: list[str], field: str = "license") -> bool:
    """Keep rows whose metadata name one of the `allowed` licences in `field`; case does not count.

    A row without the field is dropped. Columns of a source that its format does not read are metadata.
    """
    metadata = json.loads(row.get("metadata") or "{}")
    named = metadata.get(field) if isinstance(metadata, dict) else None
    return isinstance(named, str) and named.strip().lower() in {name.lower() for name in allowed}
