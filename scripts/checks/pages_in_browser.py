#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Open every page of the built documentation in a browser, at the widths of a phone and a laptop.

    scripts/docs && scripts/checks/pages_in_browser.py [FOLDER]

A page must not be wider than the window (code and tables scroll by themselves), and the search
must find what it is asked for. Chromium must be on the PATH (Debian: ``apt install chromium``).
Exits with 1 if a page fails, and with 2 without a browser.
"""

from __future__ import annotations

import argparse
import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS_PX = (390, 1280)
SEARCHES = {"Pareto": "plan_search.html", "checkpointing": "training.html"}
"""A page that the search must list, by what is searched for."""
LIMIT_S = 300
DRIVER = """\
<!doctype html><pre id="results"></pre><script>
const [pages, widths, searches] = %s;
function frame(url, width) {
  const element = document.createElement("iframe");
  element.style = `width: ${width}px; height: 844px; border: 0`;
  element.src = url;
  document.body.append(element);
  return new Promise((done) => element.addEventListener("load", () => done(element)));
}
async function main() {
  const rows = [];
  for (const page of pages) {
    for (const width of widths) {
      const element = await frame(page, width);
      rows.push([page, width, element.contentDocument.documentElement.scrollWidth]);
      element.remove();
    }
  }
  const hits = {};
  for (const word of Object.keys(searches)) {
    const element = await frame(`search.html?q=${word}`, 1280);
    for (let i = 0; i < 200; i++) {
      const links = element.contentDocument.querySelectorAll("#search-results li a");
      hits[word] = [...links].map((link) => new URL(link.href).pathname);
      if (hits[word].some((path) => path.endsWith(searches[word]))) break;
      await new Promise((done) => setTimeout(done, 50));
    }
    element.remove();
  }
  document.getElementById("results").textContent = JSON.stringify({rows, hits});
}
main();
</script>
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A handler of requests for files that writes no log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


class QuietServer(http.server.ThreadingHTTPServer):
    """A server whose client, a browser that closes pages, may hang up at any time."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors other than a closed connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def find_browser() -> str | None:
    """Return the path of a browser that can be driven, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def faults(folder: Path, browser: str) -> list[str]:
    """Return what is wrong with the pages of a folder.

    Parameters
    ----------
    folder : Path
        The built documentation.
    browser : str
        Path of Chromium.

    Returns
    -------
    faults : list of str
        A line per page and width that overflows, and per search without its page.

    Raises
    ------
    RuntimeError
        The browser did not finish.
    """
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    pages = [page for page in pages if not page.startswith(("_static/", "_modules/"))]
    handler = functools.partial(QuietHandler, directory=str(folder))
    driver = folder / "_pages_in_browser.html"
    driver.write_text(DRIVER % json.dumps([pages, WIDTHS_PX, SEARCHES]), encoding="utf-8")
    try:
        with QuietServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            text = _open(browser, f"http://127.0.0.1:{server.server_port}/{driver.name}")
            server.shutdown()
    finally:
        driver.unlink()
    match = re.search(r'<pre id="results">(\{.*?\})</pre>', text, re.DOTALL)
    if match is None:
        raise RuntimeError(f"{browser} did not open {len(pages)} pages within {LIMIT_S} s")
    results = json.loads(html.unescape(match[1]))
    wide = [
        f"{page}: {actual} px wide in a window of {width} px"
        for page, width, actual in results["rows"]
        if actual > width
    ]
    missing = [
        f'search for "{word}": {page} is not among {len(results["hits"][word])} results'
        for word, page in SEARCHES.items()
        if not any(path.endswith(page) for path in results["hits"][word])
    ]
    return wide + missing


def _open(browser: str, address: str) -> str:
    """Return the document at an address after its scripts have run."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-sync",
                "--no-first-run",
                f"--user-data-dir={profile}",
                "--window-size=1400,1000",
                f"--virtual-time-budget={LIMIT_S * 1000}",
                "--dump-dom",
                address,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
    return done.stdout


def main() -> int:
    """Check the pages and print what is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs/_build/html")
    folder = parser.parse_args().folder.resolve()
    browser = find_browser()
    if browser is None:
        print(f"no browser on the PATH: {', '.join(BROWSERS)}", file=sys.stderr)
        return 2
    lines = faults(folder, browser)
    print("\n".join(lines) or "every page fits, and the search finds its pages")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
