"""From a problem to its stored measurements: plan, compilation, gate, timing."""
