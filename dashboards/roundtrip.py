#!/usr/bin/env python3
"""Reads dashboards with Grafana's own types (grafana-foundation-sdk) and writes them again: what is gone afterwards is a key
that Grafana does not know, and what is changed a value that it takes otherwise. What the types add are their defaults.

usage: roundtrip.py FILE.. ("-" is standard input)
"""

import json
import pathlib
import sys
import warnings

# The schema of Grafana 8 to 12, which all of them read, is called old.
warnings.simplefilter("ignore", DeprecationWarning)

from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402
from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: E402
from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: E402


def differences(before, after, path="$"):
    """What of `before` is not in `after`, a line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from differences(value, after[key], f"{path}.{key}")
            elif value is not None:
                yield f"{path}.{key}: Grafana's types do not know it"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} entries became {len(after)}"
        for index, pair in enumerate(zip(before, after)):
            yield from differences(*pair, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {json.dumps(before)} became {json.dumps(after)}"


def unfolded(panels):
    """For each override of a panel the panel with its properties as defaults: the types take an override's values as they are."""
    for panel in panels:
        yield from unfolded(panel.get("panels", []))
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            once = json.loads(json.dumps(panel))
            once["fieldConfig"]["overrides"] = []
            for property in override["properties"]:
                *outer, name = property["id"].split(".")
                inner = once["fieldConfig"]["defaults"]
                for part in outer:
                    inner = inner.setdefault(part, {})
                inner[name] = property["value"]
            yield once


def again(dashboard):
    """Read and written."""
    return json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))


def main(files):
    if not files:
        sys.exit(__doc__)
    register_default_plugins()
    wrong = []
    for file in files:
        before = json.loads(sys.stdin.read() if file == "-" else pathlib.Path(file).read_text())
        wrong += [f"{file}: {line}" for line in differences(before, again(before))]
        for panel in unfolded(before["panels"]):
            once = {"panels": [panel]}
            wrong += [f"{file}: {panel['title']}, an override: {line}" for line in differences(once, again(once))]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
