"""`patch` on classes with the text of those of transformers: what is replaced, what is left alone, and back."""

import copy
import functools
import importlib
import itertools
import pickle
from typing import Any

import pytest
import torch

import normtune
from normtune.kernels.patch import FORMULAS, digest_of

HIDDEN = 96
UNKNOWN = "LlamaRMSNorm: its source is none that normtune knows"
COMPILED = "LlamaRMSNorm: it is compiled already; patch before that"
COUNTER = itertools.count()
OPENING = "import torch\nfrom torch import nn\n\n"
# The statements of __init__ and of the methods.
FORMS = {
    "LlamaRMSNorm": (
        "self.variance_epsilon = eps",
        """
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)
""",
    ),
    "Olmo2RMSNorm": (
        "self.variance_epsilon = eps",
        """
    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight * hidden_states).to(input_dtype)
""",
    ),
    "T5LayerNorm": (
        "self.variance_epsilon = eps",
        """
    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states
""",
    ),
    "GemmaRMSNorm": (
        "self.eps = eps",
        """
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)
""",
    ),
    "NanoChatRMSNorm": (
        "self.eps = eps; self.weight = None",
        """
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x)
""",
    ),
}


def text_of(name):
    opening, methods = FORMS[name]
    return f"""class {name}(nn.Module):
    def __init__(self, hidden_size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size))
        {opening}
{methods}"""


@pytest.fixture
def classes(tmp_path, monkeypatch):
    """A function of the text of a module that returns the module, imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def imported(text):
        name = f"modeling_made_{next(COUNTER)}"
        (tmp_path / f"{name}.py").write_text(OPENING + text)
        return importlib.import_module(name)

    return imported


def model_of(kind):
    """Two norms, one of them at two places, and a layer of another kind."""
    torch.manual_seed(0)
    norm = kind(HIDDEN)
    return torch.nn.Sequential(norm, torch.nn.Linear(HIDDEN, HIDDEN), kind(HIDDEN), torch.nn.LayerNorm(HIDDEN), norm)


def rows(dtype=torch.bfloat16):
    return 3 * torch.randn(5, 7, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)


def only(report):
    """The only reason of a report in which nothing was replaced."""
    assert report.replacements == {}
    (reason,) = set(report.obstacles.values())
    return reason


@pytest.mark.parametrize("name", [*FORMS, "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_known_class_has_the_same_bits_and_gradients_up_to_rounding(name, dtype, classes):
    model = model_of(torch.nn.RMSNorm if name == "torch" else getattr(classes(text_of(name)), name)).to(dtype)

    def run():
        model.zero_grad()
        out = model(rows(dtype))
        out.float().sin().sum().backward()
        return out.detach(), [parameter.grad.float() for parameter in model.parameters()]

    expected, gradients = run()
    parameters, state = list(model.parameters()), list(model.state_dict())
    kinds = list(map(type, model))
    report = normtune.patch(model)
    assert list(report.replacements) == ["0", "2"] and not report.obstacles
    assert type(model[0]) is type(model[2]) is type(model[4]) and type(model[0]) not in kinds
    assert str(report) == f"replaced 2 norms: 2 {kinds[0].__name__}"
    out, ours = run()
    assert torch.equal(out, expected)
    for gradient, wanted in zip(ours, gradients, strict=True):
        assert (gradient - wanted).norm() <= 8 * torch.finfo(dtype).eps * wanted.norm()
    assert all(one is two for one, two in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == state
    assert all(isinstance(module, kind) for module, kind in zip(model, kinds, strict=True))
    assert normtune.unpatch(model) == ["0", "2"] and list(map(type, model)) == kinds
    again, back = run()
    assert torch.equal(again, expected) and all(map(torch.equal, back, gradients))


def test_calls_reach_rms_norm_with_the_present_eps(classes):
    llama = model_of(classes(text_of("LlamaRMSNorm")).LlamaRMSNorm)[0].bfloat16()
    normtune.patch(llama)
    out = llama(rows())
    llama.variance_epsilon = 0.5
    assert torch.equal(llama(rows()), normtune.rms_norm(rows(), llama.weight, 0.5, casting="llama"))
    assert not torch.equal(llama(rows()), out)
    ours = normtune.rms_norm(rows(), llama.weight, casting="llama")
    assert type(out.grad_fn) is type(ours.grad_fn)  # no graph of torch's operations


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("weight, x", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_mixed_dtypes_are_promoted_as_before(name, weight, x, classes):
    norm = getattr(classes(text_of(name)), name)(HIDDEN).to(weight)
    expected = norm(rows(x))
    normtune.patch(norm)
    out = norm(rows(x))
    assert out.dtype == expected.dtype and torch.equal(out, expected)


@pytest.mark.parametrize("name", FORMS)
def test_other_calls_are_those_of_the_class(name, classes):
    norm = getattr(classes(text_of(name)), name)(HIDDEN).double()
    argument = "x" if "def forward(self, x)" in FORMS[name][1] else "hidden_states"
    expected = norm(rows(torch.float64))
    normtune.patch(norm)
    assert torch.equal(norm(rows(torch.float64)), expected)
    assert torch.equal(norm(**{argument: rows(torch.float64)}), expected)
    with pytest.raises(TypeError, match=r"forward\(\) missing 1 required positional argument"):
        norm()


def test_copies_pickles_moves_and_modes(classes):
    made = classes(text_of("LlamaRMSNorm"))
    model = model_of(made.LlamaRMSNorm)
    plain = copy.deepcopy(model).half()(rows(torch.float16))
    normtune.patch(model)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(model, 0))):
        assert list(map(type, same)) == list(map(type, model)) and same[0] is same[4] and same[0] is not model[0]
        assert torch.equal(same.half().eval()(rows(torch.float16)), plain)
        assert not same[0].training and same.train()[0].training


def test_a_pickle_is_of_the_class_itself_where_its_source_is_another_one(classes):
    made = classes(text_of("LlamaRMSNorm"))
    norm = made.LlamaRMSNorm(HIDDEN)
    normtune.patch(norm)
    stored = pickle.dumps(norm)
    other = classes(text_of("LlamaRMSNorm").replace("self.weight *", "2 * self.weight *"))
    made.LlamaRMSNorm = other.LlamaRMSNorm
    assert type(pickle.loads(stored)) is other.LlamaRMSNorm


@pytest.mark.parametrize(
    "old, new",
    [
        ("torch.rsqrt(variance", "torch.rsqrt(2 * variance"),
        (".to(torch.float32)", ".to(torch.float64)"),
        ("def forward(", "@torch.no_grad()\n    def forward("),
        ("def forward(", "def __call__(self, *inputs):\n        return 0\n\n    def forward("),
        ("def forward(", "size = property(lambda self: 2)\n\n    def forward("),
    ],
)
def test_another_source_is_left_alone_and_named(old, new, classes):
    text = text_of("LlamaRMSNorm")
    assert digest_of(classes(text).LlamaRMSNorm) in FORMULAS and old in text
    kind = classes(text.replace(old, new)).LlamaRMSNorm
    model = torch.nn.Sequential(kind(HIDDEN))
    report = normtune.patch(model)
    assert report.obstacles == {"0": UNKNOWN} and type(model[0]) is kind
    assert str(report).splitlines() == ["replaced 0 norms", f"left alone 1, the first is '0': {only(report)}"]


def test_what_was_put_into_the_class_or_its_module_is_noticed(classes):
    made = classes(text_of("LlamaRMSNorm"))
    norm, forward = made.LlamaRMSNorm(HIDDEN), made.LlamaRMSNorm.forward
    made.LlamaRMSNorm.forward = functools.wraps(forward)(lambda self, x: 2 * forward(self, x))
    assert only(normtune.patch(norm)) == UNKNOWN
    made.LlamaRMSNorm.forward, made.torch = forward, copy
    assert only(normtune.patch(norm)) == UNKNOWN
    made.torch = torch
    assert normtune.patch(norm).replacements == {"": "LlamaRMSNorm"}


def test_comments_annotations_docstrings_and_names_are_no_part_of_a_source(classes):
    text = text_of("LlamaRMSNorm").replace("LlamaRMSNorm", "OtherNorm").replace(": torch.Tensor", "")
    text = text.replace("        input_dtype =", '        """Normalize."""\n        # wide\n        input_dtype =')
    report = normtune.patch(classes(text).OtherNorm(HIDDEN))
    assert report.replacements == {"": "OtherNorm"}


def with_hook(norm):
    norm.register_forward_hook(lambda *_: None)


def with_backward_hook(norm):
    norm.register_full_backward_hook(lambda *_: None)


def with_forward(norm):
    norm.forward = lambda x: x


def with_parametrization(norm):
    torch.nn.utils.parametrize.register_parametrization(norm, "weight", torch.nn.Identity())


def with_matrix(norm):
    norm.weight = torch.nn.Parameter(torch.ones(7, HIDDEN))


def with_subclass(norm):
    norm.weight = type("Quantized", (torch.nn.Parameter,), {})(torch.ones(HIDDEN))


OBSTACLES = {
    with_hook: "LlamaRMSNorm: it has hooks",
    with_backward_hook: "LlamaRMSNorm: it has hooks",
    with_forward: "LlamaRMSNorm: its forward is replaced",
    with_parametrization: "ParametrizedLlamaRMSNorm: it is a subclass of LlamaRMSNorm",
    with_matrix: "LlamaRMSNorm: its weight has 2 dimensions",
    with_subclass: "LlamaRMSNorm: its weight is a Quantized",
}


@pytest.mark.parametrize("change", OBSTACLES)
def test_a_changed_norm_is_left_alone_and_named(change, classes):
    norm = classes(text_of("LlamaRMSNorm")).LlamaRMSNorm(HIDDEN)
    change(norm)
    kind = type(norm)
    assert only(normtune.patch(torch.nn.Sequential(norm))) == OBSTACLES[change] and type(norm) is kind


@pytest.mark.parametrize(
    "wrapper", ["BaseTunerLayer", "FSDPModule", "FullyShardedDataParallel", "ModulesToSaveWrapper"]
)
def test_a_wrapped_norm_is_left_alone_wherever_else_it_is(wrapper, classes):
    norm = classes(text_of("LlamaRMSNorm")).LlamaRMSNorm(HIDDEN)
    outer = type("Wrapped", (type(wrapper, (torch.nn.Sequential,), {}),), {})(torch.nn.Sequential(norm))
    reason = "LlamaRMSNorm: it is wrapped in Wrapped; patch before that"
    assert normtune.patch(torch.nn.Sequential(norm, outer)).obstacles == {"0": reason}


@pytest.mark.slow
def test_a_compiled_model_is_left_alone_and_a_patched_one_compiles(classes):
    model = model_of(classes(text_of("LlamaRMSNorm")).LlamaRMSNorm)
    expected = model(rows(torch.float32))
    model[0].compile(backend="eager")
    report = normtune.patch(model)
    assert report.replacements == {"2": "LlamaRMSNorm"} and report.obstacles == {"0": COMPILED}
    normtune.unpatch(model)
    model[0]._compiled_call_impl = None
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    assert only(normtune.patch(compiled)) == COMPILED
    assert len(normtune.patch(model).replacements) == 2
    assert torch.equal(compiled(rows(torch.float32)), expected)


def graph_of(norm, *inputs, **named):
    """The operations that a compiler sees."""
    graphs = []

    def backend(module, _):
        graphs.append([str(node.target) for node in module.graph.nodes if node.op != "placeholder"])
        return module

    torch.compile(norm, backend=backend, fullgraph=True)(*inputs, **named)
    (graph,) = graphs
    return graph


@pytest.mark.usefixtures("initial_state")
@pytest.mark.parametrize("name", [*FORMS, "torch"])
def test_a_compiler_sees_the_formula_of_the_class_unless_kernels_are_pinned(name, classes):
    norm = (torch.nn.RMSNorm if name == "torch" else getattr(classes(text_of(name)), name))(HIDDEN).bfloat16()
    expected = graph_of(norm, rows())
    assert "normtune" not in str(expected)
    normtune.patch(norm)
    assert graph_of(norm, rows()) == expected
    normtune.use(compiled="kernel")
    assert "normtune" in str(graph_of(norm, rows()))


@pytest.mark.usefixtures("initial_state")
def test_a_compiled_call_may_name_its_argument(classes):
    norm = classes(text_of("LlamaRMSNorm")).LlamaRMSNorm(HIDDEN)
    expected = graph_of(norm, hidden_states=rows(torch.float32))
    normtune.patch(norm)
    assert graph_of(norm, hidden_states=rows(torch.float32)) == expected


def test_subclasses_are_left_alone_and_norms_of_normtune_are_not_named(classes):
    kind = classes(text_of("LlamaRMSNorm")).LlamaRMSNorm
    model = torch.nn.Sequential(type("MyRMSNorm", (kind,), {})(HIDDEN), normtune.RMSNorm(HIDDEN), kind(HIDDEN))
    for replacements in ({"2": "LlamaRMSNorm"}, {}):  # the second call finds nothing more
        report = normtune.patch(model)
        assert report.replacements == replacements
        assert report.obstacles == {"0": "MyRMSNorm: it is a subclass of LlamaRMSNorm"}
    assert normtune.unpatch(model) == ["2"] and normtune.unpatch(model) == []


def test_a_class_with_the_text_of_torchs_keeps_its_shape() -> None:
    """Over several dimensions without a weight, where nothing but the attribute says how many."""
    members = {name: value for name, value in vars(torch.nn.RMSNorm).items() if name not in ("__dict__", "__weakref__")}
    copied = type("RMSNorm", (torch.nn.Module,), members | {"__module__": "elsewhere"})
    norm = copied.__new__(copied)
    torch.nn.Module.__init__(norm)
    norm.normalized_shape, norm.eps, norm.elementwise_affine, norm.weight = (7, HIDDEN), None, False, None
    expected = norm(rows(torch.float32))
    assert list(normtune.patch(norm).replacements) == [""]
    assert torch.equal(norm(rows(torch.float32)), expected)


@pytest.mark.parametrize("options", [{}, {"elementwise_affine": False}, {"eps": 1e-3}])
@pytest.mark.parametrize("shape", [HIDDEN, (7, HIDDEN)])
def test_all_forms_of_torchs_module(shape, options):
    norm = torch.nn.RMSNorm(shape, **options)
    expected = norm(rows(torch.float32))
    assert normtune.patch(norm).replacements == {"": "RMSNorm"}
    assert repr(norm).startswith("NormtuneRMSNorm(") and torch.equal(norm(rows(torch.float32)), expected)
    told = (
        r"weight has shape \(96,\): expected \(3,\)"
        if shape == HIDDEN and norm.weight is not None
        else "normalized_shape"
    )
    with pytest.raises(ValueError, match=told):
        norm(torch.ones(3))


@pytest.mark.parametrize("call", [normtune.patch, normtune.unpatch])
def test_what_is_no_module_is_refused(call):
    with pytest.raises(TypeError, match=r"model is 'llama': expected a torch\.nn\.Module"):
        call("llama")
