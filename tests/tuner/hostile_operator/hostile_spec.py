"""An operator, y = 2x, whose configs misbehave on purpose: the number of stages selects the fault."""

from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import Buffer
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tiles.launch import Launch

FAULTS = (
    "none",
    "hang",
    "out_of_bounds",
    "out_of_memory",
    "kill",
    "raise",
    "wrong",
    "wrong_now_and_then",
    "hang_in_compiler",
    "kill_compiler",
    "wrong_at_one_size",
    "hang_at_one_size",
    "out_of_bounds_at_one_size",
)
# Those "at one size" are faulty only here.
ROWS = 5000


def config_of(fault, warps=4):
    return RMSNormConfig("block_row", 2, warps, 1 + FAULTS.index(fault))


def _buffers(problem):
    shape = (problem.rows, problem.hidden)
    return (Buffer("x", shape, problem.dtype, "input"), Buffer("y", shape, problem.dtype, "output"))


def _space(name, problem, target):
    return [config_of(fault) for fault in FAULTS] + [config_of("none", warps) for warps in (1, 2, 8)]


def _resolve(config, problem, target, alignment):
    block_col = 1 << (problem.hidden - 1).bit_length()
    mask = block_col != problem.hidden
    return Launch(False, -(-problem.rows // 2), 2, block_col, config.num_warps, config.num_stages, 1, mask, 0)


register(
    OperatorSpec(
        name="hostile",
        modes=(),
        config=RMSNormConfig,
        scalars={"eps": 1e-6, "offset": 0.25},
        dtypes=("float32",),
        max_hidden=4096,
        buffers=_buffers,
        space=_space,
        resolve=_resolve,
        default_config=lambda problem, target: config_of("none"),
        kernel_calls="hostile_kernels:calls",
        reference_module="hostile_reference",
    )
)
