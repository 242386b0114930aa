"""What the integrations with TRL and verl share: prompts from rows, fresh rows, and metrics of a batch."""
