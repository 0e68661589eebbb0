"""Digests of the compiled code of launches: equal digests mean equal code.

In: kernel calls, in a process whose active Triton driver has the target. Out: 16 bytes per launch. Only Triton's
frontend runs, so no GPU and no assembler is needed. Digests of different versions of Triton cannot be compared.
"""

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from normtune.kernels.call import KernelCall

_DIGEST_BYTES = 16
# The declaration of a function in TTIR. Its name, with that of its module, may change.
_FUNCTION = re.compile(r"\btt\.func (?:public |private )?@([\w.$]+|\"[^\"]+\")")


class MisfitError(Exception):
    """A kernel does not accept the arguments of a call, so nothing is compiled."""


class Frontend:
    """Digests of kernels from Triton's frontend, which each specialisation of a kernel passes once."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, str], bytes] = {}
        self._compiled: dict[str, bytes] = {}

    def of_call(self, call: KernelCall) -> bytes:
        """The digest of the specialised kernel: optimised TTIR without names and positions, target and options.

        Raises:
            MisfitError: the kernel does not accept these arguments.
            Exception: the kernel cannot be compiled, or Triton has other private interfaces.
        """
        from normtune.kernels.calling.triton_inside import stopped_before_compiling

        digests: list[bytes] = []
        is_bound = False

        def digest(*_: Any, **event: Any) -> bool:
            nonlocal is_bound
            is_bound = True
            kernel, compile = event["fn"].jit_function, event["compile"]
            key = (id(kernel), compile["key"])
            if key not in self._digests:
                self._digests[key] = _digest(_code_text(kernel, compile))
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
        return digests[0] if digests else self._compiled[compiled.hash]

    def remember(self, kernels: Sequence[Any], digests: Sequence[bytes]) -> None:
        """Keep the digests of compiled kernels, which Triton holds in memory without calling its hook again."""
        self._compiled.update(zip((kernel.hash for kernel in kernels), digests, strict=True))


def digest_of_launch(calls: Iterable[KernelCall], codes: Iterable[bytes]) -> bytes:
    """The digest of kernel calls: the code of each (from `Frontend.of_call`), its grid and its arguments.

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


def canonical(text: str) -> str:
    """TTIR without debug information, with functions named by their order."""
    for number, name in enumerate(dict.fromkeys(_FUNCTION.findall(text))):
        text = re.sub(rf"@{re.escape(name)}(?![\w.$])", f"@f{number}", text)
    return text


def _code_text(kernel: Any, compile: dict[str, Any]) -> str:
    """Text that determines the machine code of a specialised kernel, given the version of Triton."""
    from normtune.kernels.calling.triton_inside import frontend_code

    options = json.loads(compile["specialization_data"])["options"]
    target, text = frontend_code(kernel, compile, options)
    # Without paths of libraries, which depend on the installation of Triton.
    options |= {"extern_libs": sorted(name for name, _ in options.get("extern_libs") or ())}
    head = json.dumps([target.backend, target.arch, target.warp_size, options], sort_keys=True, default=str)
    return f"{head}\n{canonical(text)}"


def machine_code(binaries: Iterable[bytes]) -> bytes:
    """The digest of the machine code in cubins or hsacos, without names and debug information."""
    return hashlib.sha256(b"".join(map(_instructions, binaries))).digest()[:_DIGEST_BYTES]


def _instructions(binary: bytes) -> bytes:
    """The sections `.text*` of an ELF64 file, little-endian.

    ELF64, little-endian: the offset of the section headers is at 0x28; their size, their number and the number of the
    one with the names at 0x3A. A header begins with the offset of its name, and has its section's offset and size at
    0x18.
    """
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [start + number * size for number in range(count)]
    extents = [struct.unpack_from("<QQ", binary, header + 0x18) for header in headers]
    sections = []
    for header, (offset, length) in zip(headers, extents, strict=True):
        name = extents[names][0] + struct.unpack_from("<I", binary, header)[0]
        if binary[name : name + 5] == b".text":
            sections.append(binary[offset : offset + length])
    return b"".join(sections)


def _argument(value: Any, tensors: dict[int, int]) -> Any:
    if hasattr(value, "data_ptr"):
        return [tensors.setdefault(id(value), len(tensors)), str(value.dtype), list(value.shape)]
    if isinstance(value, float):  # in no binary: Triton specialises on integers only
        return "float"
    return value if isinstance(value, int) else str(value)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
