"""RMSNorm kernels whose launch is looked up in tables that were measured, and the tool that measures them."""

__version__ = "0.1.0"
