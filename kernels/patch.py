"""The norms of a model, replaced in place: `patch` and `unpatch`.

In: a model. Out: the same modules with another class. That class is a subclass of the original one whose forward calls
`rms_norm`; it adds no state. So parameters, state dicts, hooks of parents and references stay as they are. A class is
replaced if its methods have the text of a known one, whatever its name, its library and that one's version.
"""

import ast
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from types import FunctionType
from typing import Any, NamedTuple

import torch

from normtune.kernels.calling.compiled import way_of
from normtune.kernels.calling.layout import PLAIN_TYPES
from normtune.kernels.calling.op import is_compiling
from normtune.kernels.rms_norm.function import CALLS, FORMS, Casting, rms_norm
from normtune.kernels.syntax import bare, text_of


class Formula(NamedTuple):
    """What the forward of a class computes.

    Attributes:
        casting, offset: of `rms_norm`.
        eps: the attribute with this name has eps.
        has_weight: whether the forward reads the attribute `weight`.
    """

    casting: Casting
    offset: float
    eps: str
    has_weight: bool = True


# By the digest of a class's methods, with classes that have it. Of the first, transformers 5.24 has 142.
FORMULAS = {
    "96eb06751b19b99d": Formula("llama", 0.0, "variance_epsilon"),  # Llama, Mistral, Phi3, Qwen2, Qwen3, DeepseekV3
    "fb6b0749963d90a0": Formula("llama", 0.0, "eps"),  # Llama4Text
    "f8b85d2914fe40dd": Formula("llama", 0.0, "variance_epsilon"),  # T5LayerNorm, MT5, UMT5
    "a92f0b986871aeb6": Formula("gemma", 0.0, "variance_epsilon"),  # GptOss, Olmo2, Olmo3, DeepseekV4
    "d20446944b64e92c": Formula("gemma", 0.0, "variance_epsilon"),  # Helium, NemotronH
    "ca248f48de751216": Formula("gemma", 0.0, "eps"),  # Moshi
    "75e166d1c3cf18d1": Formula("gemma", 0.0, "eps"),  # Gemma3n, Gemma4
    "047ac15886e8e865": Formula("gemma", 1.0, "eps"),  # Gemma, Gemma2, Gemma3, Qwen3Next, T5Gemma
    "943600c30791a661": Formula("gemma", 0.0, "eps", has_weight=False),  # NanoChat, Llama4TextL2Norm
    "84178bc659e6f843": Formula("gemma", 0.0, "eps", has_weight=False),  # Inkling2Unweighted
    "cb68d10c5d2453d5": Formula("gemma", 0.0, "eps"),  # torch.nn.RMSNorm
}
# These say nothing of what a forward computes.
_OTHER_METHODS = {"__init__", "extra_repr", "reset_parameters"}
_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
# Modules with one of these classes do more with a module inside than to call it.
_WRAPPERS = {"BaseTunerLayer", "FSDPModule", "FullyShardedDataParallel", "ModulesToSaveWrapper"}
# What compilers see depends on sizes alone, in all castings.
_OPERATION = CALLS["gemma"].operation
# The classes that replace others, and the others by these.
_replacements: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}
_originals: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


@dataclass(frozen=True)
class Patch:
    """What `patch` did; `print` shows a summary.

    Attributes:
        replacements: name of a module to the name of its class before.
        obstacles: name of a norm that stays as it is, to the reason.
    """

    replacements: dict[str, str]
    obstacles: dict[str, str]

    def __str__(self) -> str:
        classes = ", ".join(f"{count} {name}" for name, count in Counter(self.replacements.values()).items())
        count = len(self.replacements)
        lines = [f"replaced {count} norm{'s' * (count != 1)}{classes and f': {classes}'}"]
        for reason, count in Counter(self.obstacles.values()).items():
            first = next(name for name, of in self.obstacles.items() if of == reason)
            lines.append(f"left alone {count}, the first is {first or 'the model'!r}: {reason}")
        return "\n".join(lines)


class _Patched(torch.nn.Module):
    """What all classes share that replace others."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        reduced: Any = super().__reduce_ex__(protocol)
        original = _originals.get(type(self))
        return (_blank, (original,), *reduced[2:]) if original else reduced


def _forward_of(kind: type[torch.nn.Module], formula: Formula) -> Callable[..., Any]:
    """The forward of the class that replaces `kind`. Inputs that promote or stay wide in the original are given to it.

    What is fixed for a class is a closure, as attributes of a class take 0.2 us of 4.
    """
    casting, offset, eps, has_weight = formula
    call, original = FORMS[casting], kind.forward

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        # A compiler gets the original forward, as it checks at each call what this one reads: 1.4 us a module on a CPU,
        # 0.55 for the original, 0.6 for this detour, 0.75 if it goes by a closure or `super`. FSDP makes subclasses.
        if (
            is_compiling()
            and inputs
            and type(self) in _originals
            and way_of(_OPERATION, inputs[0], True, None) == "formula"
        ):
            return _originals[type(self)].forward(self, *inputs, **named)
        weight = None
        if has_weight:
            weight = self._parameters.get("weight")
            if weight is None:  # the module has none, or one that is no parameter
                weight = getattr(self, "weight", None)
        if len(inputs) == 1 and not named:
            (x,) = inputs
            dtype = x.dtype
            of_weight = dtype if weight is None else weight.dtype
            # In Llama's form the result of a wider weight is as wide.
            if dtype in _DTYPES and (of_weight == dtype or (casting == "gemma" and of_weight in _DTYPES)):
                shape = self.__dict__.get("normalized_shape")
                if shape is not None and (weight is None or len(shape) > 1):
                    return rms_norm(x, shape, weight, getattr(self, eps), offset)
                return call(x, weight, getattr(self, eps), offset)
        return original(self, *inputs, **named)

    return forward


def patch(model: torch.nn.Module) -> Patch:
    """Let the RMSNorm modules of a model launch normtune's kernels.

    Replaced are `torch.nn.RMSNorm`, and the classes of Hugging Face transformers whose source is known. Modules stay
    the same objects, and instances of their classes. Parameters, names of state dicts and saved models do not change.
    Outputs on a CPU have the same bits as before; gradients differ by rounding. A pickle of the model needs normtune.

    Call it before `torch.compile`, FSDP and PEFT. Norms stay as they are in compiled modules and in wrappers of FSDP
    and PEFT, and so do those with hooks, parametrizations or a forward of their own.

    Args:
        model: any module; a norm itself, too.

    Returns:
        The replaced norms; and the others, among modules that are named after a norm, with the reason.

    Raises:
        TypeError: `model` is no module.
    """
    _check(model)
    report = Patch({}, {})
    wrapped = {inner: reason for outer in model.modules() if (reason := _wrapping(outer)) for inner in outer.modules()}
    for name, module in model.named_modules():
        kind = type(module)
        if not _is_norm(kind):
            continue
        reason = wrapped.get(module) or _obstacle(module)
        if reason:
            report.obstacles[name] = f"{kind.__name__}: {reason}"
        else:
            report.replacements[name] = kind.__name__
            module.__class__ = _patched(kind)
    return report


def unpatch(model: torch.nn.Module) -> list[str]:
    """Give the norms that `patch` replaced their classes back.

    Returns:
        The names of these modules.

    Raises:
        TypeError: `model` is no module.
    """
    _check(model)
    modules = {name: module for name, module in model.named_modules() if type(module) in _originals}
    for module in modules.values():
        module.__class__ = _originals[type(module)]
    return list(modules)


def digest_of(kind: type) -> str:
    """Digest of the methods that a class itself defines, without docstrings, annotations and comments.

    Empty if one of them has no text, is no plain function, or is defined where `torch` is something else.
    """
    texts = []
    for name, value in sorted(vars(kind).items()):
        if name in _OTHER_METHODS or not hasattr(value, "__get__"):
            continue
        if not isinstance(value, FunctionType) or value.__globals__.get("torch") is not torch:
            return ""
        try:
            # That of the code, as the source of a function is that of the one it wraps.
            source = inspect.getsource(value.__code__)
            (statement,) = ast.parse(dedent(source)).body
        except (OSError, SyntaxError):
            return ""
        texts.append(text_of(bare(statement, lambda _: False), {}))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _check(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {model!r}: expected a torch.nn.Module")


def _is_norm(kind: type) -> bool:
    """Whether a class, not of normtune, is torch's RMSNorm, one named after a norm, or a subclass of either."""
    rooms = [base.__module__.partition(".")[0] for base in kind.__mro__]
    names = [base.__name__.lower() for base, room in zip(kind.__mro__, rooms, strict=True) if room != "torch"]
    is_named = any("rmsnorm" in name or name.endswith("norm") for name in names)
    return "normtune" not in rooms and (is_named or issubclass(kind, torch.nn.RMSNorm))


def _wrapping(module: torch.nn.Module) -> str:
    """Why all norms in a module stay as they are; empty if it may be entered."""
    names = {base.__name__ for base in type(module).__mro__}
    if module._compiled_call_impl is not None or "OptimizedModule" in names:
        return "it is compiled already; patch before that"
    return f"it is wrapped in {type(module).__name__}; patch before that" if names & _WRAPPERS else ""


def _obstacle(module: torch.nn.Module) -> str:
    """Why a norm stays as it is; empty if it can be replaced."""
    if type(module).__bases__ != (torch.nn.Module,):
        return f"it is a subclass of {type(module).__bases__[0].__name__}"
    if _formula_of(type(module)) is None:
        return "its source is none that normtune knows"
    if "forward" in vars(module):
        return "its forward is replaced"
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)):
        return "it has hooks"
    weight = getattr(module, "weight", None)
    if weight is not None and type(weight) not in PLAIN_TYPES:
        return f"its weight is a {type(weight).__name__}"
    if weight is not None and weight.dim() != 1 and type(module) is not torch.nn.RMSNorm:
        return f"its weight has {weight.dim()} dimensions"
    return ""


def _formula_of(kind: type) -> Formula | None:
    return FORMULAS.get(digest_of(kind))


def _patched(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The class that replaces a known one, always the same."""
    if kind not in _replacements:
        members = {"__module__": kind.__module__, "forward": _forward_of(kind, FORMULAS[digest_of(kind)])}
        replacement = type(f"Normtune{kind.__name__}", (_Patched, kind), members)
        _replacements[kind], _originals[replacement] = replacement, kind
    return _replacements[kind]


def _blank(kind: type[torch.nn.Module]) -> torch.nn.Module:
    """A module without state, for pickle: of the original class where its source is no longer a known one."""
    cls = _patched(kind) if _formula_of(kind) else kind
    return cls.__new__(cls)
