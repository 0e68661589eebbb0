"""Maps and lists of measurements for the terminal."""
