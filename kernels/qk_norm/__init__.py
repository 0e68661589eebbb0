"""RMSNorm of the query and key heads of a fused QKV tensor, and their rotary embedding."""
