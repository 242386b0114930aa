"""Plan a study and carry out its runs."""
