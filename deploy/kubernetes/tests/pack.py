"""Packs custom resource definitions into schemas.json.gz: `pack.py CRD.yaml ..`; schemas.md names their sources."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml


def json_schema(schema: Any, *, names: bool = False) -> Any:
    """Returns a structural schema of OpenAPI 3 as JSON Schema 2020-12, without descriptions; unknown fields are errors.

    Args:
        schema: the schema, or with `names` a mapping from names to schemas.
        names: whether the keys are names of fields.
    """
    if isinstance(schema, list):
        return [json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if names:
        return {name: json_schema(one) for name, one in schema.items()}
    kept = {
        key: json_schema(value, names=key == "properties")
        for key, value in schema.items()
        if key not in ("description", "format", "nullable", "default", "example") and not key.startswith("x-")
    }
    if schema.get("x-kubernetes-int-or-string"):
        kept.pop("type", None)
        kept.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.get("nullable") and "type" in kept:
        kept["type"] = [kept["type"], "null"]
    # Booleans in OpenAPI 3.0, numbers here.
    for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if kept.pop(key, False):
            kept[key] = kept.pop(bound)
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
    if "properties" in kept and "additionalProperties" not in kept and not is_open:
        kept["additionalProperties"] = False
    return kept


def main(paths: list[str]) -> None:
    schemas = {}
    for path in paths:
        for crd in yaml.load_all(Path(path).read_text(), yaml.CSafeLoader):
            for version in crd["spec"]["versions"]:
                schema = json_schema(version["schema"]["openAPIV3Schema"])
                # The API server fills and checks these.
                schema["properties"].update(apiVersion={}, kind={}, metadata={"type": "object"})
                schemas[f"{crd['spec']['group']}/{version['name']} {crd['spec']['names']['kind']}"] = schema
    text = json.dumps(schemas, separators=(",", ":"), sort_keys=True)
    Path(__file__).with_name("schemas.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
