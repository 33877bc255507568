"""A hook of mkdocs: pages that are not files of docs/, and links that work in the site as they do on a code host.

Pages of the project outside docs/, notebooks, a page for each method, and listings of the files that pages link to are
made when the site is built. A link to a file that is no page leads to its listing; one to a folder becomes plain text.
"""

from __future__ import annotations

import json
import os.path
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedstill.algorithms import known
from fedstill.algorithms.base import Algorithm
from fedstill.cli.method import Method, method

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "benchmarks/README.md", "evidence/**/*.md")
LINK = re.compile(r"\[([^][]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".yaml": "yaml"}
METHODS = sorted(known(Algorithm), key=str.casefold)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the methods where the navigation says `[methods]`."""
    pages = [{name: f"methods/{name}.md"} for name in METHODS]
    for section in config.nav or []:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else []:
                entry.update({title: pages for title, target in entry.items() if target == ["methods"]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every page that is not a file of docs/."""
    project = {inside(path): path.read_text("utf-8") for glob in OUTSIDE for path in ROOT.glob(glob)}
    notebooks = {f"notebooks/{path.stem}.md": notebook_page(path) for path in ROOT.glob("notebooks/*.ipynb")}
    docs = {inside(path): path.read_text("utf-8") for path in ROOT.glob("docs/*.md")}
    linked = {path for page, text in (docs | project | notebooks).items() for path in targets(page, text)}
    listings = {listing_uri(path): listing(path) for path in linked if is_listed(path)}
    methods = {f"methods/{name}.md": method_page(method(name)) for name in METHODS}
    for uri, text in (project | notebooks | listings | methods).items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to pages of the site; set marks of numbers apart from tables; let messages wrap."""
    uri = page.file.src_uri
    if uri.startswith(("source/", "methods/")):
        return markdown
    home = f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri
    markdown = re.sub(r"^(<!-- (?:numbers: .*|end) -->)$", r"\n\1\n", markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^```\nerror: ", "``` { .text .wraps }\nerror: ", markdown, flags=re.MULTILINE)
    return LINK.sub(lambda link: led(link, home, uri), markdown)


def led(link: re.Match[str], home: str, uri: str) -> str:
    """A link of a page as it is in the site; `home` is the page's file, `uri` its place in the site."""
    words, target, part = link[1], link[2], link[3] or ""
    if "://" in target:
        return link[0]
    path = beside(home, target)
    if (place := place_of(path)) is None:
        return words
    return f"[{words}]({os.path.relpath(place, Path(uri).parent)}{part})"


def place_of(path: Path) -> str | None:
    """Where a file of the project stands in the site; None: nowhere."""
    if path.suffix == ".ipynb":
        return inside(path.with_suffix(".md"))
    if path == ROOT / "README.md":
        return "index.md"
    if path.parent == ROOT / "docs":
        return path.name
    if any(path in ROOT.glob(glob) for glob in OUTSIDE):
        return inside(path)
    return listing_uri(path) if is_listed(path) else None


def inside(path: Path) -> str:
    """A path from the project's folder on."""
    return path.relative_to(ROOT).as_posix()


def beside(page: str, target: str) -> Path:
    """The file that a link of a page leads to."""
    return Path(os.path.normpath(ROOT / Path(page).parent / target))


def targets(page: str, text: str) -> list[Path]:
    """The files that a page links to."""
    return [beside(page, target) for _, target, _ in LINK.findall(text) if "://" not in target]


def is_listed(path: Path) -> bool:
    """Whether a file that a page links to is shown as a listing."""
    return path.suffix in LANGUAGES and path.is_file()


def listing_uri(path: Path) -> str:
    """The page of a file's listing."""
    return f"source/{inside(path)}.md"


def listing(path: Path) -> str:
    """A file of the project as a page, which the search leaves out."""
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {inside(path)}\n\n"
    return f"{head}````{LANGUAGES[path.suffix]}\n{path.read_text('utf-8')}````\n"


def notebook_page(path: Path) -> str:
    """A notebook's cells as a page."""
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    return "\n\n".join([*parts, f"To run it: `{inside(path)}`."]) + "\n"


def method_page(found: Method) -> str:
    """What `fedstill show` says of a method."""
    page = f"{found.name.lower()}.md"
    more = page if (ROOT / "docs" / page).exists() else "baselines.md"
    facts = {
        "paper": found.paper,
        "needs": ", ".join(found.needs) or "nothing",
        "clients send": ", ".join(found.sends) or "nothing",
        "numbers per round": found.cost or "none",
    }
    options = [f"| `{one.name}` | {plain(one.type)} | `{one.default}` |" for one in found.options]
    parts = [
        f"# {found.name}",
        found.what[:1].upper() + found.what[1:],
        "\n".join(["| | |", "|---|---|", *(f"| {key} | {plain(value)} |" for key, value in facts.items())]),
        "N public samples, C classes, K clients, P parameters.",
        plain(found.about),
        "## Options",
        "\n".join(["| option | values | default |", "|---|---|---|", *options]) if options else "It has none.",
        f"The same on the command line: `fedstill show {found.name}`. More: [{more}](../{more}).",
    ]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """A text whose signs outside backquotes are no Markdown."""
    parts = text.split("`")
    return "`".join(part if n % 2 else re.sub(r"([*_|<>\[\]])", r"\\\1", part) for n, part in enumerate(parts))
