"""Lineage in standard formats: CycloneDX, OpenLineage, W3C PROV."""
