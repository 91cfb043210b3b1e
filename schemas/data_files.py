"""Files of rows, by the suffixes of their names."""

DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".md")
"""Suffixes of files of rows."""
COMPRESSED = (".gz", ".zst")
"""Suffixes that may follow them."""


def is_data_file(name: str) -> bool:
    """Return whether a file of this name holds rows, by its suffix."""
    plain = name.lower()
    for suffix in COMPRESSED:
        plain = plain.removesuffix(suffix)
    return plain.endswith(DATA_SUFFIXES)
