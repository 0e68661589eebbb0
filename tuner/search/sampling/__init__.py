"""Searches in which a sampler of Optuna proposes the configs of each problem."""
