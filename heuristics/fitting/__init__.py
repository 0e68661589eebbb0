"""Evidence of one GPU to fitted functions: conditions, sharing between dtypes and variants, and one tree each."""
