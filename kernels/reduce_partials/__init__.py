"""The sum of partial sums, as an operator of its own."""
