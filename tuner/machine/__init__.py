"""State of this machine: torch, Triton, NVML, a GPU; child processes."""
