"""Stages the pages of the site: adapts Markdown of the repository to Python-Markdown, and makes the navigation.

The sources are written for GitHub. Python-Markdown needs four spaces per level of a list, and makes other anchors of some headings.
Documents outside of docs/ become pages below project/. Links to files that are not pages become text.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from unicodedata import normalize

SECTIONS = {
    "Get started": "get-started.md",
    "Tutorials": "tutorials/",
    "How-to": "how-to/",
    "Reference": "reference/",
    "Explanation": "explanation/",
    "Measurements": "measurements/",
    "Compare": "compare.md",
    "Glossary": "glossary.md",
    "Project": "project/",
}
"""The sections of the navigation: a page, or a folder, whose pages have the order in which docs/index.md links to them."""
PROJECT = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "agent/README.md": "agent.md",
    "tests/bench/README.md": "bench.md",
    "crates/client/README.md": "client.md",
    "dashboards/README.md": "dashboards.md",
    "tests/traces/README.md": "traces.md",
    "trainer/README.md": "trainer.md",
}
"""Documents outside of docs/, and their names in the folder project/ of the site."""
GLOSSARY = "docs/glossary.md"
TERM = re.compile(r"(?m)^- \*\*([^*]+)\*\*: ")
"""The beginning of an entry of the glossary."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(```+)")


def documents(root: Path) -> list[str]:
    """Markdown files of the repository, tracked or new, by path."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted({name for name in names if (root / name).is_file()})


def stage(root: Path, target: Path, generated: dict[str, str]) -> None:
    """Writes the input of Zensical into a folder, which is emptied: the documents, and generated pages of docs/ by name."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root / "docs", target / "docs", ignore=shutil.ignore_patterns("*.md", "*.toml"))
    shutil.copy(root / "predictor" / "src" / "ui" / "mark.svg", target / "docs")
    staged = {name: name.removeprefix("docs/") for name in documents(root) if name.startswith("docs/")}
    staged.update({name: f"project/{page}" for name, page in PROJECT.items() if (root / name).is_file()})
    texts = {name: (root / name).read_text() for name in staged} | generated
    staged.update({name: name.removeprefix("docs/") for name in generated})
    anchors = {name: anchors_of(name, text) for name, text in texts.items()}
    texts[GLOSSARY] = TERM.sub(lambda term: f'- <span id="{slug(term[1])}"></span>**{term[1]}**: ', texts[GLOSSARY])
    for name, page in staged.items():
        path = target / "docs" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(indented(linked(texts[name], name, staged, anchors)))
    settings = (root / "docs" / "zensical.toml").read_text()
    entries = navigation(texts["docs/index.md"], staged.values())
    (target / "zensical.toml").write_text(settings.replace("nav = []", f"nav = {entries}", 1))


def navigation(index: str, staged: Iterable[str]) -> str:
    """The navigation, as TOML."""
    order = [match[3] for match in LINK.finditer(index)]
    by_order = sorted(staged, key=lambda page: (order.index(page) if page in order else len(order), not page.endswith("README.md"), page))
    others = [page for page in by_order if page != "index.md" and not page.startswith(tuple(SECTIONS.values()))]
    entries = ['"index.md"']
    for section, place in SECTIONS.items():
        pages = [page for page in by_order if page.startswith(place)] + (others if section == "How-to" else [])
        if pages:
            entries.append(f"{{ {json.dumps(section)} = {json.dumps(pages if place.endswith('/') else pages[0])} }}")
    return f"[{', '.join(entries)}]"


def linked(text: str, name: str, staged: dict[str, str], anchors: dict[str, dict[str, str]]) -> str:
    """The text with links between pages of the site, and without links to other files."""

    def link(match: re.Match[str]) -> str:
        image, label, target, anchor = match[1], match[2], match[3], (match[4] or "")[1:]
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
        if path in staged:
            there = os.path.relpath(staged[path], os.path.dirname(staged[name])) if target else ""
            return f"{image}[{label}]({there}{'#' + anchors[path].get(anchor, anchor) if anchor else ''})"
        if path.startswith("docs/") and not path.endswith((".md", "/")):
            return f"{image}[{label}]({os.path.relpath(path.removeprefix('docs/'), os.path.dirname(staged[name]))})"
        return label

    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in split_fences(text))


def split_fences(text: str) -> list[str]:
    """The prose and the blocks of code of a text, in their order."""
    return re.split(r"(?ms)^(```.*?^```)$", text)


def indented(text: str) -> str:
    """The text with four spaces per level of a list."""
    lines, shift, fence = [], 0, ""
    for line in text.split("\n"):
        opens = FENCE.match(line)
        if fence:
            lines.append(" " * shift + line if line.strip() else line)
            if opens and opens[2] == fence:
                fence = ""
            continue
        spaces = len(line) - len(line.lstrip(" "))
        wanted = 0 if spaces < 2 else 4 if spaces < 4 else 8
        if opens:
            fence, shift = opens[2], wanted - spaces
        lines.append(" " * wanted + line.lstrip(" ") if spaces and line.strip() else line)
    return "\n".join(lines)


def headings(text: str) -> Iterator[str]:
    """The headings of a page, without marks."""
    for part in split_fences(text):
        if not part.startswith("```"):
            for title in re.findall(r"(?m)^#+ (.*?)\s*$", part):
                yield re.sub(r"[`*]|\]\([^)]*\)|\[", "", title)


def slug(title: str) -> str:
    """GitHub's anchor of a heading. Entries of the glossary have the same form of anchor."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors_of(name: str, text: str) -> dict[str, str]:
    """GitHub's anchors of a page, and Python-Markdown's for the same headings; on the site, entries of the glossary have one too."""
    found = {slug(term): slug(term) for term in TERM.findall(text)} if name == GLOSSARY else {}
    used: set[str] = set()
    counts: dict[str, int] = {}
    for title in headings(text):
        github = slug(title)
        ascii_only = normalize("NFKD", title).encode("ascii", "ignore").decode()
        site = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        repeats = counts.get(github, 0)
        counts[github] = repeats + 1
        unique, number = site, 0
        while unique in used:
            number += 1
            unique = f"{site}_{number}"
        used.add(unique)
        found[f"{github}-{repeats}" if repeats else github] = unique
    return found
