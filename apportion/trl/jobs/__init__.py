"""Training jobs: from a TOML file to a model trained by TRL under an allocator."""
