"""Statistics of a finished batch by prompt, and sums pooled over prompts that are believed similar."""
