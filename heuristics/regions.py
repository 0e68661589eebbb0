"""The regions of an emitted table, read back from its code.

In: the text of a table. Out: for each function its leaves with the integers they answer for. What a table does is read
from the file that users run, not from the fit that wrote it, so a check of these regions is a check of that file.
"""

import ast

from normtune.errors import NormtuneError
from normtune.heuristics.tree import Leaf, Split, Tree
from normtune.kernels.config import Config


def trees(text: str) -> dict[tuple[str, str], Tree]:
    """The tree of each (operator key, dtype) of a table.

    Raises:
        NormtuneError: the code has a form that normtune does not write.
    """
    try:
        module = ast.parse(text)
        configs: dict[str, Config] = {}
        functions: dict[str, Tree] = {}
        found: dict[tuple[str, str], Tree] = {}
        for node in module.body:
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=ast.Call(func=ast.Name("Config"), args=arguments)):
                    configs[name] = Config(*(ast.literal_eval(argument) for argument in arguments))
                case ast.FunctionDef(name=name) if name != "lookup":
                    functions[name] = _tree(node.body, configs)
                case ast.AnnAssign(target=ast.Name("TABLES"), value=ast.Dict(keys=keys, values=values)):
                    for key, value in zip(keys, values, strict=True):
                        operator, dtype = ast.literal_eval(key)  # type: ignore[arg-type]
                        found[operator, dtype] = functions[value.id]  # type: ignore[attr-defined]
        return found
    except (SyntaxError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NormtuneError(f"its code has a form that normtune does not write ({error})") from None


def _tree(body: list[ast.stmt], configs: dict[str, Config]) -> Tree:
    match body:
        case [ast.Return(value=ast.Name(name))]:
            return Leaf(configs[name])
        case [
            ast.If(
                test=ast.Compare(left=ast.Name(axis), ops=[sign], comparators=[ast.Constant(int(threshold))]),
                body=first,
                orelse=[],
            ),
            *rest,
        ]:
            if axis == "hidden" and isinstance(sign, ast.LtE):
                return Split(axis, threshold, _tree(first, configs), _tree(rest, configs))
            if axis == "rows" and isinstance(sign, ast.GtE):
                return Split(axis, threshold, _tree(rest, configs), _tree(first, configs))
    raise ValueError(f"line {body[0].lineno if body else 0}")
