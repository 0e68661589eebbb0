"""Searches whose proposals come from a sampler of Optuna, problem by problem."""
