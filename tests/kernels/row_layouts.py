"""The layout in which the compiler sums a row for sm_90, out of its text after the passes that choose layouts."""

import re

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from normtune.kernels.target import TARGETS

TARGET = TARGETS["sm_90"]
_TYPES = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}
_SUM = re.compile(
    r'"tt\.reduce"\([^)]*\) <\{axis = (\d+) : i32\}>.*?\}\) : \(tensor<([\dx]+)xf32, (#\w+)>\)', re.DOTALL
)
_LAYOUT = re.compile(
    r"(#\w+) = #ttg\.blocked<\{sizePerThread = \[(.*?)\], threadsPerWarp = \[(.*?)\], warpsPerCTA = \[(.*?)\]"
)


class Shaped:
    """A contiguous tensor that has no memory."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def stride(self, axis=None):
        strides = (*self.shape[1:], 1)
        return strides if axis is None else strides[axis]


def row_sums(spec, launch, problem, wide=()):
    """(vector, lanes, warps) along the row of the operand of each sum over a row, in the compiler's order.

    Args:
        spec: of the operator.
        launch: of `problem`.
        problem: rows, hidden and dtype.
        wide: names of buffers that are float32, whatever the problem's dtype.
    """
    tensors = {
        buffer.name: Shaped(buffer.shape, "float32" if buffer.name in wide else buffer.dtype)
        for buffer in spec.buffers(problem)
    }
    workspace = Shaped((max(1, launch.workspace),), "float32")
    call = spec.calls_function()(launch, problem, tensors, workspace, **spec.scalars)[0]
    text = _text(call)
    layouts = {name: tuple(int(numbers.split(",")[-1]) for numbers in rest) for name, *rest in _LAYOUT.findall(text)}
    found = []
    for axis, shape, name in _SUM.findall(text):
        sizes = [int(size) for size in shape.split("x")]
        if len(sizes) <= 2 and int(axis) == len(sizes) - 1:
            found.append(_used(sizes[-1], *layouts[name]))
    return found


def _used(columns, vector, lanes, warps):
    """The layout without lanes and warps that hold what others hold, too."""
    lanes = min(lanes, max(1, columns // vector))
    return vector, lanes, min(warps, max(1, columns // (vector * lanes)))


def _text(call):
    names = call.kernel.arg_names
    values = dict(zip(names, call.args, strict=False)) | {
        name: value for name, value in call.options.items() if name in names
    }
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(names):
        value = values[name]
        if call.kernel.params[place].is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, Shaped):
            signature[name], aligned[(place,)] = _TYPES[value.dtype], [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(call.kernel, signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({name: value for name, value in call.options.items() if name not in names})
    context, stages, metadata = ir.context(), {}, {"target": target, **options.__dict__}
    ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, options, source.language)
    builtin = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(target, options, *builtin, context)
    for stage in ("ttir", "ttgir"):  # the layouts are chosen: code of the GPU takes ten times as long
        module = stages[stage](module, metadata)
    return str(module)
