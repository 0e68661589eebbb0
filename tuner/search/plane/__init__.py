"""The search that learns from the times at all shapes which configs are worth timing."""
