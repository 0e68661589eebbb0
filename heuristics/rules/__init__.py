"""Launch rules of other libraries, each in the terms of this one, so that they can be scored on the same kernels."""
