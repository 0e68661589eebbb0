"""Whether measurements, or a table fitted to them, are of the present kernels.

If the fingerprint of an operator's sources (`kernels.fingerprint`) and the digests of its launches are unchanged, they
are. Otherwise the digest of the compiled code decides, or the fingerprint if there is no digest or another Triton is
installed; `sweep --stale` then compares the machine code. `code` computes the digests, `stored` compares a store,
`recorded` a recording or an exported file, and `table` reports on a table.
"""
