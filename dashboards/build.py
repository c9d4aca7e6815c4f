#!/usr/bin/env python3
"""Generates the dashboards in grafana/ from source/. `--check` only reports outdated files."""

import json
import pathlib
import sys

from source import job, node, overview, service

FOLDER = pathlib.Path(__file__).parent / "grafana"
SOURCES = {"overview": overview, "job": job, "node": node, "service": service}


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit("usage: build.py [--check]")
    stale = []
    for name, source in SOURCES.items():
        path, text = FOLDER / f"{name}.json", json.dumps(source.build(), indent=2) + "\n"
        if not arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"outdated: {', '.join(stale)}; run dashboards/build.py to generate them from source/")


if __name__ == "__main__":
    main(sys.argv[1:])
