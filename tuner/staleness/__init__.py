"""Whether measurements, or a table fitted to them, are of the present kernels.

If the fingerprint of an operator's sources (`kernels.fingerprint`) and the digests of its launches are unchanged, they
are. Otherwise the digest of the assembly decides, or the fingerprint without a digest; for `sweep --stale` it decides
after a change of Triton, too. `code` computes the digests, `stored` compares a store, `recorded` a recording or an
exported file, and `table` reports on a table.
"""
