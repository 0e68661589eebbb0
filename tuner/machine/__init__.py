"""What this machine has and lacks: torch, Triton, NVML, a GPU."""
