"""The page of the Python API, from the docstrings of the package, which is not imported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PUBLIC = {
    "evenstep": ["job/init.py:init", "job/job.py:Job", "elastic/job.py:ElasticJob", "run/loader.py:Loader", "run/step.py:Step", "run/measured.py:measure_costs"]
    + ["profiling/profiles.py:profile", "profiling/profiles.py:Profile"]
    + ["burst_parallel/model.py:burst", "burst_parallel/model.py:Burst", "errors.py:EvenstepError", "errors.py:SettingError"]
    + ["errors.py:RejectedError", "errors.py:DivergedError", "errors.py:UnsupportedError"],
    "evenstep.lightning": ["lightning.py:EvenstepCallback"],
    "evenstep.transformers": ["transformers.py:Trainer", "transformers.py:EvenstepMixin"],
    "evenstep.accelerate": ["accelerate.py:prepare"],
}
"""Documented names by module: the file of each definition, and its name."""
HOOKS = re.compile(r"on_(?!oom)|state_dict$|load_state_dict$|get_|compute_loss|training_step|train$")
"""Methods of classes for frameworks that only the framework calls."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page(package: Path) -> str:
    """The page, as Markdown."""
    parts = ["# Python API\n\nEvery public name of the package, from its docstrings. [Training with PyTorch](python.md) is the guide.\n"]
    for module, names in PUBLIC.items():
        for entry in names:
            file, name = entry.split(":")
            tree = ast.parse((package / file).read_text())
            # The last one: overloads come before the function.
            *_, found = [node for node in tree.body if isinstance(node, Function | ast.ClassDef) and node.name == name]
            parts += list(_definition(found, module))
    return "\n".join(parts)


def _definition(node: Function | ast.ClassDef, module: str) -> Iterator[str]:
    """A function, or a class with its public members."""
    yield f"## {module}.{node.name}\n"
    if isinstance(node, Function):
        yield f"```python\n{_signature(node, module)}\n```\n"
        yield _text(node)
        return
    methods = [child for child in node.body if isinstance(child, Function)]
    init = [method for method in methods if method.name == "__init__" and method.args.kwonlyargs + method.args.args[1:]]
    is_own = module == "evenstep"
    if init and not is_own:
        yield f"```python\n{_signature(init[0], module, node.name)}\n```\n"
    yield _text(node)
    if init and not is_own and ast.get_docstring(init[0]):
        yield _text(init[0])
    fields = list(_fields(node))
    if fields:
        yield "".join(f"- `{name}`: {text}\n" for name, text in fields)
    for method in methods:
        if method.name.startswith("_") or (not is_own and HOOKS.match(method.name)) or not ast.get_docstring(method):
            continue
        if any(ast.unparse(mark) == "property" for mark in method.decorator_list):
            yield f"### {node.name}.{method.name}\n\nProperty, `{ast.unparse(method.returns) if method.returns else 'Any'}`.\n"
        else:
            yield f"### {node.name}.{method.name}\n\n```python\n{_signature(method, '')}\n```\n"
        yield _text(method)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Fields of a data class, and the comments before them; the text of a field is its type."""
    if not any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        return
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id, f"`{ast.unparse(child.annotation)}`"


def _signature(node: Function, module: str, name: str = "") -> str:
    """The signature, one argument per line if it is long."""
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0].args
    arguments.args = [argument for argument in arguments.args if argument.arg not in ("self", "cls")]
    name = name or node.name
    left = f"{module}.{name}" if module else name
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and name == node.name else ""
    line = f"{left}({ast.unparse(arguments)}){returns}"
    if len(line) <= 90:
        return line
    pieces = (re.sub(r"(: [^=]*?)=", r"\1 = ", piece, count=1) for piece in _pieces(ast.unparse(arguments)))
    return f"{left}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){returns}"


def _pieces(arguments: str) -> Iterator[str]:
    """The arguments, split at commas outside of brackets."""
    depth, begin = 0, 0
    for place, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield arguments[begin:place].strip()
            begin = place + 1
    yield arguments[begin:].strip()


def _text(node: Function | ast.ClassDef) -> str:
    """A docstring as Markdown: sections become lists, literal blocks become code."""
    lines: list[str] = []
    section, code, example = False, False, False
    for line in (ast.get_docstring(node) or "").split("\n"):
        title = re.match(r"(Args|Raises|Returns|Yields|Example):$", line)
        item = re.match(r" {4}(\*{0,2}\w+): (.*)", line)
        if code and (line.startswith("    ") or not line):
            lines.append(line[4:])
            continue
        if code:
            while lines and not lines[-1]:
                lines.pop()
            lines += ["```", ""]
            code = False
        if title:
            lines += [f"**{ {'Args': 'Arguments', 'Raises': 'Errors'}.get(title[1], title[1]) }**", ""]
            section = title[1] != "Example"
            example = not section
        elif section and item:
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif section and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        elif example and line.startswith("    >>> "):
            lines += [*([] if not lines or not lines[-1] else [""]), "```python", line[4:]]
            code = True
        elif example:
            lines.append(line.strip())
        elif line.endswith("::"):
            lines += [line[:-1] if len(line) > 2 else "", "", "```python"]
            code = True
        else:
            lines.append(line.strip() if section else line)
    if code:
        while lines and not lines[-1]:
            lines.pop()
        lines.append("```")
    text = re.sub(r":(?:meth|func|class|attr):`([^`]*)`", r"`\1`", "\n".join(lines))
    return re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", re.sub(r"```python\n\n+", "```python\n", text)) + "\n"
