"""RMSNorm that writes its result in FP8: with a scale for the tensor, for each row or for each 128 columns of a row."""
