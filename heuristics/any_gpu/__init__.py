"""Evidence of several GPUs to one table for any GPU, with thresholds relative to the GPU's size."""
