#!/usr/bin/env python3
"""Parses dashboards with Grafana's own types (grafana-foundation-sdk) and serializes them again. A missing key is unknown to
Grafana; a changed value is one that Grafana interprets differently. Added keys are defaults and are ignored.

usage: roundtrip.py FILE.. ("-" is standard input)
"""

import json
import pathlib
import sys
import warnings

# The SDK marks the schema of Grafana 8 to 12 as deprecated, but all these versions read it.
warnings.simplefilter("ignore", DeprecationWarning)

from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402
from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: E402
from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: E402


def differences(before, after, path="$"):
    """Yields one line for each part of `before` that is missing or changed in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from differences(value, after[key], f"{path}.{key}")
            elif value is not None:
                yield f"{path}.{key}: unknown to Grafana's types"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} entries became {len(after)}"
        for index, pair in enumerate(zip(before, after)):
            yield from differences(*pair, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {json.dumps(before)} became {json.dumps(after)}"


def unfolded(panels):
    """Yields a panel for each override, with its properties as defaults, because the types do not check values of overrides."""
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
    """Returns the dashboard after parsing and serializing it."""
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
            wrong += [f"{file}: {panel['title']}, override: {line}" for line in differences(once, again(once))]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
