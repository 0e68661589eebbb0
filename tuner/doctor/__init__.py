"""What a bug report has to say of a machine."""
