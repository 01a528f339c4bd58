"""The training loop and everything it owns: optimizer, schedule, saved steps, resume."""
