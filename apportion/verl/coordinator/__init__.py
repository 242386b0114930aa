"""The coordinator of a verl run, free of verl, Ray and torch: it plans rounds, assigns tasks and collects results."""
