"""Searches the built site for the questions of users, with the site's own index and search program in Chromium.

Each question must find its page among the first results, and the first screen of the place found must have the expected phrase.
"""

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

QUESTIONS = Path(__file__).with_name("questions.tsv")
FIRST = 3
"""Number of results that a reader looks at."""
SCREEN_WORDS = 220
"""Words on the first screen of a page."""
TIMEOUT_S = 180.0
"""Time limit of Chromium; the search itself takes a second."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE = """<!doctype html><title>search</title><script type="module">
const index = await (await fetch('search.json')).json();
const start = await (await fetch('index.html')).text();
const config = JSON.parse(new DOMParser().parseFromString(start, 'text/html').querySelector('#__config').textContent);
const worker = new Worker(config.search);
const ask = (type, data) => new Promise((done) => { worker.onmessage = (event) => done(event.data); worker.postMessage({ type, data }); });
await ask(0, index);
const found = [];
for (const input of QUERIES) {
  const { data } = await ask(2, { input });
  found.push((data.items ?? []).map((item) => index.items[item.id].location));
}
await fetch('/found', { method: 'POST', body: JSON.stringify(found) });
</script>"""


def findings(site: Path) -> Iterator[str]:
    """Questions whose page or phrase the search does not find."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"SKIPPED the search of the site: none of {', '.join(BROWSERS)} is installed")
        return
    questions = [line.split("\t") for line in QUESTIONS.read_text().splitlines() if line and not line.startswith("#")]
    results = searched(site, browser, [words for _, words, _, _ in questions])
    if results is None:
        yield f"search: {browser} returned no results within {TIMEOUT_S:.0f} s"
        return
    items = json.loads((site / "search.json").read_text())["items"]
    for (question, words, page, answer), locations in zip(questions, results, strict=True):
        places = [location for location in locations[:FIRST] if location.split("#")[0] == page]
        if not places:
            yield f"search: {question!r} ({words}): {page} is not among {locations[:FIRST]}"
        elif not any(answer.lower() in screen(items, place).lower() for place in places):
            yield f"search: {question!r}: {answer!r} is not on the first screen of {places[0]}"


def screen(items: list[dict[str, str]], location: str) -> str:
    """The first words of a place, and of what follows on its page."""
    begin = next(number for number, item in enumerate(items) if item["location"] == location)
    page = location.split("#")[0]
    parts = [item["title"] + " " + item["text"] for item in items[begin:] if item["location"].split("#")[0] == page]
    plain = html.unescape(re.sub(r"<[^>]*>", "", " ".join(parts)))
    return " ".join(plain.split()[:SCREEN_WORDS])


class _Server(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and the page that searches."""

    found: list[list[str]] | None = None
    queries: list[str] = []
    done = threading.Event()

    def do_GET(self) -> None:
        if self.path != "/questions":
            super().do_GET()
            return
        body = PAGE.replace("QUERIES", json.dumps(self.queries)).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        type(self).found = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.end_headers()
        self.done.set()

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


def searched(site: Path, browser: str, queries: list[str]) -> list[list[str]] | None:
    """The places found for each query, best first; None if the browser returned nothing."""
    handler = type("_Search", (_Server,), {"queries": queries, "done": threading.Event()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
            process = subprocess.Popen(
                [browser, *flags, "--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/questions"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            handler.done.wait(TIMEOUT_S)
            process.kill()
            process.wait()
        server.shutdown()
    return handler.found
