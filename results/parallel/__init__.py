"""Work on all cores of this machine."""
