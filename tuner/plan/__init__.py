"""What a sweep measures, in which order, what a store has of it, and how long it will take."""
