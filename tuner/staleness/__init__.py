"""Whether measurements, or a table fitted to them, are of the present kernels.

The fingerprint of an operator's sources (`kernels.fingerprint`) and the digest of each launch are the quick look. Where
one of them differs, the digest of the compiled code decides. Where that cannot be compared, because it was not stored
or there is not the same Triton here, the fingerprint does; `sweep --stale` compares the instructions of what another
Triton compiled. `code` makes the digests of both; `stored` compares a store, `recorded` a recording or an exported
file, and `table` says what that means for a table.
"""
