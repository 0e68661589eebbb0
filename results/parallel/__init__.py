"""Work on all cores of this machine, or on those of a Ray cluster."""
