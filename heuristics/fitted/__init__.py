"""What a fit is asked for and what it gives: options, baseline, functions, figures, and the module as code."""
