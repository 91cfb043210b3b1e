"""Networks beside a policy: value models and process reward models."""
