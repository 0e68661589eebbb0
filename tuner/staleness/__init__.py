"""Whether measurements, or a table fitted to them, are of the kernels as they are.

The fingerprint of an operator's sources (`kernels.fingerprint`) and the digest of its launches are the quick look.
Where one of them differs, the digest of the compiled code decides, and the fingerprint alone where that cannot be
compared: it was not stored, or Triton is another one or none. `code` makes the digests; `stored` compares a store,
`recorded` a recording or an exported file, and `table` tells of a table what `recorded` finds of its configs.
"""
