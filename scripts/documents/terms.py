"""Checks that the words which the glossary explains for the page, `top`, Grafana and alerts occur there."""

import re
from collections.abc import Iterator
from pathlib import Path

from documents import pages

SURFACES = ("predictor/src/ui", "predictor/src/top", "predictor/src/report", "dashboards/source", "dashboards/prometheus/rules")
SOURCES = (".css", ".html", ".js", ".py", ".rs", ".yaml")


def findings(root: Path) -> Iterator[str]:
    """Entries of the first section of the glossary that occur on no surface, and entries that occur twice."""
    text = (root / pages.GLOSSARY).read_text()
    terms = pages.TERM.findall(text)
    for term in sorted({term for term in terms if terms.count(term) > 1}):
        yield f"{pages.GLOSSARY}: {term!r} has two entries"
    files = (path for folder in SURFACES for path in sorted((root / folder).rglob("*")) if path.suffix in SOURCES)
    shown = re.sub(r"\s+", " ", " ".join(path.read_text() for path in files)).lower()
    for term in pages.TERM.findall(text.split("\n## ")[1]):
        if not re.search(rf"\b{re.escape(term.lower())}s?\b", shown):
            yield f"{pages.GLOSSARY}: {term!r} occurs in none of {', '.join(SURFACES)}"
