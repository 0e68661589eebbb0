"""`normtune sweep`: request, preparation, measuring, progress and report."""
