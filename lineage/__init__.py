"""What we remember: manifests, and their projections into DVC, MLflow and DuckDB."""
