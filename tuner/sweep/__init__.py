"""`normtune sweep`: what is asked for, what is prepared and measured, and what is shown of it."""
