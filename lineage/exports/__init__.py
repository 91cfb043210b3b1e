"""Lineage in the formats of others: CycloneDX, OpenLineage, W3C PROV."""
