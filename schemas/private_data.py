"""Kinds of private data that a curation finds."""

from typing import Literal

Private = Literal["email", "phone", "iban", "card", "ip_address", "key", "token", "password"]
"""Kinds of private data and secrets."""
