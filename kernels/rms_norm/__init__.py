"""RMSNorm and its gradients: kernels, specs, composed reference, and the public function and module."""
