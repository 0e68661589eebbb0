"""Which configs of a problem are measured, and how often."""
