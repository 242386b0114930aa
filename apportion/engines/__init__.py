"""What trainers share: the decisions of a run, prompts from rows, fresh rows, saved states, and metrics of a batch."""
