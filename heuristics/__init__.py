"""From timings to a table: matrix, regret, exact threshold trees, model selection, emitted code, rules of others."""
