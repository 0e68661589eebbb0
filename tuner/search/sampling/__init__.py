"""The search in which Optuna proposes the configs of each problem."""
