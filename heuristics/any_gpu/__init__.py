"""Fits one table for any GPU to measurements of several GPUs, with thresholds relative to the GPU's size."""
