"""Records of artifacts: manifests, and their projections into DVC, MLflow and DuckDB."""
