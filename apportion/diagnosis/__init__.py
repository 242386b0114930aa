"""What a recorded run wasted, what could have been known, and what would help."""
