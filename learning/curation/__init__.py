"""Curation of rows: filters, duplicates, decontamination, and the ledger of dropped rows."""
