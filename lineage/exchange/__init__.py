"""Artifacts exchanged with DVC: remotes, dvc.yaml, plain folders."""
