"""RMSNorm of a sum, x + residual, and its gradients: specs, formula, and the public function and module."""
