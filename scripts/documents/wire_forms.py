"""The page of wire forms, from the OpenAPI document that a predictor serves."""

import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_S = 60.0
"""Time limit of a request, in seconds."""


def page(predictor: Path) -> str:
    """Returns the page, as Markdown."""
    document = _document(predictor)
    parts = [
        "# Wire forms\n\nEvery request and response of the [HTTP API](http.md) with its fields, units and limits, from `/openapi.json` of the\n"
        "predictor. A field without a mark in the column \"required\" may be absent. Names end with their unit.\n\n## Endpoints\n",
        "| method | path | purpose |\n|---|---|---|",
    ]
    for path, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            parts.append(f"| {method.upper()} | `{path}` | {_text(operation.get('summary') or operation.get('description', ''))} |")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append("\n".join(_schema(name, schema)))
    return "\n".join(parts) + "\n"


def _document(predictor: Path) -> Any:
    """The OpenAPI document of a predictor that runs for this purpose."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(predictor), "serve", "--listen", "127.0.0.1:0", "--store", f"sqlite://{folder}/evenstep.db"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                address = next(filter(None, (re.search(r"http://[\d.:]+", line) for line in process.stdout)))[0]
                with urllib.request.urlopen(f"{address}/openapi.json", timeout=START_S) as response:
                    return json.load(response)
            finally:
                process.terminate()


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    """One form: its purpose and its fields."""
    yield f"\n## {name}\n\n{_text(schema.get('description', ''))}".rstrip()
    properties = schema.get("properties", {})
    if properties:
        yield "\n| field | type | required | meaning |\n|---|---|---|---|"
        for field, form in properties.items():
            required = "yes" if field in schema.get("required", []) else ""
            yield f"| `{field}` | {_type(form)} | {required} | {_text(_description(form))} |"
    elif "enum" in schema:
        yield "\nOne of " + ", ".join(f"`{value}`" for value in schema["enum"]) + "."
    elif "oneOf" in schema and all("enum" in form for form in schema["oneOf"]):
        yield "\n| value | meaning |\n|---|---|"
        for form in schema["oneOf"]:
            yield f"| `{form['enum'][0]}` | {_text(form.get('description', ''))} |"
    else:
        yield f"\nType: {_type(schema)}."


def _description(form: dict[str, Any]) -> str:
    """The description of a field, which may be in an alternative."""
    inner = [part.get("description", "") for part in form.get("oneOf", [])]
    return str(form.get("description") or next(filter(None, inner), ""))


def _type(form: dict[str, Any]) -> str:
    """A type with its limits, and links to other forms."""
    if "$ref" in form:
        name = form["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    options = form.get("oneOf") or form.get("anyOf") or []
    kinds = form.get("type", [])
    kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    if options:
        return " or ".join(_type(option) for option in options if option.get("type") != "null")
    if "enum" in form:
        return ", ".join(f"`{value}`" for value in form["enum"])
    if kinds == ["array"]:
        most = f", at most {form['maxItems']:,}" if "maxItems" in form else ""
        return f"list of {_type(form.get('items', {}))}{most}"
    if kinds == ["object"] and isinstance(form.get("additionalProperties"), dict):
        return f"map to {_type(form['additionalProperties'])}"
    return (kinds[0] if kinds else "any") + _limits(form)


def _limits(form: dict[str, Any]) -> str:
    """The range of a number, or the length of a text."""
    low, high = form.get("minimum"), form.get("maximum")
    if high is not None and high >= 2**53:
        high = None
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    if low is not None:
        return f", at least {low:,}"
    if high is not None:
        return f", at most {high:,}"
    return f", at most {form['maxLength']} characters" if "maxLength" in form else ""


def _text(text: str) -> str:
    """A description in one line, safe in a table."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(part if part.startswith("`") else re.sub(r"([<>*])", r"\\\1", part) for part in parts)
