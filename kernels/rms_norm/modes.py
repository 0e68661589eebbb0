"""What RMSNorm and its relatives may round to the dtype of x on the way, where all arithmetic is in float32 otherwise.

As Liger-Kernel does in its casting modes `llama` (products) and `none` (products and statistics). Part of the kernels'
fingerprint.
"""

from normtune.kernels.mode import Mode


class Sum(Mode):
    """The sum x + residual, before it is normalized."""

    FLOAT32 = ""
    ROUNDED = "rounded_sum"


class Product(Mode):
    """The product x * rstd, before the weight multiplies it; of a backward that in the terms of the weight gradient."""

    FLOAT32 = ""
    ROUNDED = "rounded_product"


class Statistics(Mode):
    """The squares of x, eps, weight + offset, and the rstd that is stored."""

    FLOAT32 = ""
    ROUNDED = "rounded_statistics"
