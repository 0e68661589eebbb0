"""RMSNorm of rows or groups of them, gated by SiLU: operators, function and module."""
