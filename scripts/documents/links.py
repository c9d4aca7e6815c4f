"""Checks links and anchors, in the Markdown of the repository and in the built site."""

import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from documents import pages


def of_repository(root: Path) -> Iterator[str]:
    """Links of Markdown files to missing files or headings, as on GitHub."""
    anchors: dict[str, set[str]] = {}
    for name in pages.documents(root):
        text = "".join(part for part in pages.split_fences((root / name).read_text()) if not part.startswith("```"))
        for match in pages.LINK.finditer(text):
            target, anchor = match[3], (match[4] or "")[1:]
            if re.match(r"[a-z]+:", target):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            if path.startswith("..") or not (root / path).exists():
                yield f"{name}: {match[0]}: no such file"
            elif anchor and path.endswith(".md"):
                if path not in anchors:
                    anchors[path] = set(pages.anchors_of(path, (root / path).read_text()))
                if anchor not in anchors[path]:
                    yield f"{name}: {match[0]}: {path} has no such heading"


class _Page(HTMLParser):
    """Collects the anchors and the local links of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value is not None and tag != "base":
                self.links.append(value)


def of_site(site: Path) -> Iterator[str]:
    """Links of built pages to missing files or anchors, and links that load something from another host."""
    built = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in sorted(built.items()):
        # Its links are relative to wherever it is shown.
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else Path(os.path.normpath(path.parent / unquote(parts.path)))
            target = target / "index.html" if target.is_dir() else target
            name = path.relative_to(site)
            if not target.is_file():
                yield f"site/{name}: {link}: no such page"
            elif parts.fragment and target in built and unquote(parts.fragment) not in built[target].ids | {"__comments"}:
                yield f"site/{name}: {link}: no such anchor"
