"""The world that a policy acts in: problems, their tokenizer, and a noisy demonstrator."""
