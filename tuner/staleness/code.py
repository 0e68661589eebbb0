"""Digests of the assembly that launches run: equal digests mean equal code, whatever Triton and sources it is of.

In: kernel calls, in a process whose active Triton driver has the target; or compiled kernels. Out: 16 bytes per launch.
PTX and AMD's assembly need no GPU and no assembler.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normtune.kernels.call import KernelCall

_DIGEST_BYTES = 16
# Beginnings of comments, by kind of assembly.
_COMMENTS = {"ptx": "//", "amdgcn": ";"}
# Lines that no instruction depends on: positions in sources, labels of debug information, and versions of tools.
_UNUSED = re.compile(r"\.(?:loc|file|ident|version|cfi_\w+)\b|(?:\$L__|\.L)(?:tmp|func_begin|func_end)\d+:")
_SECTION = re.compile(r"\.(?:section|text|amdgpu_metadata)\b")
# The declaration of a function. Its name may change.
_FUNCTION = re.compile(
    r"^(?:\.visible )?\.(?:entry|func)\s+(?:\(.*?\)\s*)?([\w$]+)|^\.type\s+([\w$.]+),@function", re.MULTILINE
)
# Registers, and parameters of functions.
_NUMBERED = re.compile(r"%[a-z]+\d+\b|\bf\d+_param_\d+\b")
# Rounds in which registers are told apart by those beside them.
_ROUNDS = 2
# The metadata of a kernel that its launch and the assembler depend on.
_METADATA = (
    "shared",
    "num_warps",
    "num_ctas",
    "enable_fp_fusion",
    "launch_cooperative_grid",
    "launch_pdl",
    "ptx_options",
)
# In place of the digest of a launch, where the compiler refuses a kernel.
REFUSED = b"refused"


class MisfitError(Exception):
    """A kernel does not accept the arguments of a call, so nothing is compiled."""


class Assembler:
    """Digests of the assembly of kernels, which Triton makes once for each specialisation of a kernel."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, str], bytes] = {}

    def of_call(self, call: KernelCall) -> bytes:
        """The digest of the kernel that a call launches, without its binary.

        Raises:
            MisfitError: the kernel does not accept these arguments.
            Exception: the kernel cannot be compiled, or Triton has other private interfaces.
        """
        from normtune.kernels.calling.triton_inside import assembly_of, stopped_before_compiling

        digests: list[bytes] = []
        is_bound = False

        def digest(*_: Any, **event: Any) -> bool:
            nonlocal is_bound
            is_bound = True
            kernel, compile = event["fn"].jit_function, event["compile"]
            key = (id(kernel), compile["key"])
            if key not in self._digests:
                self._digests[key] = digest_of_assembly(*assembly_of(kernel, compile))
            digests.append(self._digests[key])
            return True

        try:
            with stopped_before_compiling(digest):
                compiled = call.kernel.warmup(*call.args, grid=call.grid, **call.options)
        except (KeyError, TypeError) as error:
            if is_bound:
                raise
            reason = f"{type(error).__name__}: {error}"
            raise MisfitError(f"its call of {call.kernel.__name__} does not fit the kernel ({reason})") from error
        return digests[0] if digests else digest_of_compiled(compiled)


def digest_of_compiled(kernel: Any) -> bytes:
    """The digest of a compiled kernel; empty if its assembly is in no cache of Triton."""
    kind = {"cuda": "ptx", "hip": "amdgcn"}[kernel.metadata.target.backend]
    return digest_of_assembly(kind, kernel.asm[kind], kernel.metadata._asdict()) if kind in kernel.asm else b""


def digest_of_assembly(kind: str, text: str, metadata: Mapping[str, Any]) -> bytes:
    """The digest of a kernel: its instructions, and the metadata that its launch and the assembler depend on.

    The order of instructions within a basic block of PTX, and the list of parameters, do not count.

    Args:
        kind: `ptx` or `amdgcn`.
        text: the assembly.
        metadata: Triton's, of the compiled kernel.
    """
    values = {name: metadata[name] for name in _METADATA if name in metadata}
    code = instructions(kind, text)
    content = "\n".join(_without_order(code.splitlines())) if kind == "ptx" else code
    return _digest(f"{json.dumps(values, sort_keys=True, default=str)}\n{content}")


def instructions(kind: str, text: str) -> str:
    """Assembly without debug information, comments and versions, with functions named by their order."""
    lines = []
    is_debug = False
    for whole in text.splitlines():
        line = whole.partition(_COMMENTS[kind])[0].strip()
        if _SECTION.match(line):
            is_debug = ".debug" in line
        if line and not is_debug and not _UNUSED.match(line):
            lines.append(line)
    code = "\n".join(lines)
    for number, names in enumerate(dict.fromkeys(_FUNCTION.findall(code))):
        code = re.sub(rf"(?<![\w$.]){re.escape(''.join(names))}(?=_param_|[^\w$]|$)", f"f{number}", code)
    return code


def _without_order(lines: Sequence[str]) -> list[str]:
    """A digest of each line of PTX, sorted within each basic block, with registers by their uses in place of numbers.

    LLVM orders instructions that it moves out of loops by addresses of its objects, so compiles of one kernel differ in
    the order of instructions and in the numbers of registers. A register, or a parameter, is what the lines that name
    it say of it and of the registers beside it (B. Weisfeiler, A. Lehman 1968). So the list of parameters, whose
    declarations are left out, does not count either.
    """
    block, parsed = 0, []
    for line in lines:
        if not line.startswith(".param"):
            block += line.endswith(":")
            parsed.append((f"{block} {_NUMBERED.sub(_class_of, line)}", _NUMBERED.findall(line)))
            block += "bra" in line
    colors = {name: "" for _, names in parsed for name in names}
    for _ in range(_ROUNDS):
        uses: dict[str, list[str]] = {name: [] for name in colors}
        for template, names in parsed:
            signed = _short(template, [colors[name] for name in names])
            for place, name in enumerate(names):
                uses[name].append(f"{signed}{place}")
        colors = {name: _short("", sorted(of)) for name, of in uses.items()}
    return sorted(_short(template, [colors[name] for name in names]) for template, names in parsed)


def _class_of(numbered: re.Match[str]) -> str:
    return numbered[0].rstrip("0123456789")


def _short(text: str, parts: Sequence[str]) -> str:
    return hashlib.blake2b(" ".join((text, *parts)).encode(), digest_size=8).hexdigest()


def digest_of_launch(calls: Iterable[KernelCall], codes: Iterable[bytes]) -> bytes:
    """The digest of kernel calls: the code of each (from `Assembler.of_call`), its grid and its arguments.

    Of tensors it has dtype, shape and identity within the launch. Names, addresses, values of floating-point scalars
    and missing arguments are ignored.
    """
    tensors: dict[int, int] = {}
    parts = [
        [code.hex(), list(call.grid), [_argument(value, tensors) for value in call.args if value is not None]]
        for call, code in zip(calls, codes, strict=True)
    ]
    return _digest(json.dumps(parts, separators=(",", ":")))


def triton_version() -> str:
    """Version of the installed Triton; empty without one."""
    try:
        from triton import __version__
    except ImportError:
        return ""
    return str(__version__)


def _argument(value: Any, tensors: dict[int, int]) -> Any:
    if hasattr(value, "data_ptr"):
        return [tensors.setdefault(id(value), len(tensors)), str(value.dtype), list(value.shape)]
    if isinstance(value, float):  # in no binary: Triton specialises on integers only
        return "float"
    return value if isinstance(value, int) else str(value)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
