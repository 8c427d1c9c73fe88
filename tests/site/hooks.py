"""What the site adds to the pages: navigation, the list of decisions, notebooks, and files of the repository that pages link to.

A page links to a file outside `docs/` as in the repository. On the site such a file is a page under `files/`; a link to a
folder of pages goes to their list. Anything else is left to mkdocs, which refuses a link that leads nowhere.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from tests.site import notebooks

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
SECTIONS = {
    "Learn": ["tutorials/quickstart.md", "tutorials/a-first-model.md", "tutorials", "notebooks"],
    "Do": [
        "how-to/estimate-before-you-rent.md", "how-to/fit-a-budget.md", "how-to/choose-a-budget.md",
        "how-to/look-at-a-plan.md", "how-to/save-a-plan.md", "how-to",
    ],
    "Gallery": ["gallery"],
    "Understand": ["explanation"],
    "Look up": ["reference", "glossary.md"],
    "API": ["reference/api"],
    "Check": ["benchmarks"],
    "Decisions": ["decisions"],
}  # fmt: skip
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".md": "markdown", "": "make"}
LIST_OF_DECISIONS = "decisions/index.md"
FOREIGN_WORKER = "https://unpkg.com/iframe-worker/shim"
WORKER = "worker-in-frame.js"


def pages_of(folder: str) -> list[str]:
    """The pages of a folder of `docs`, its index first."""
    names = sorted(path.with_suffix(".md").name for end in ("md", "ipynb") for path in (DOCS / folder).glob(f"*.{end}"))
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: name != "README.md")]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation: every page of the folders of each section."""
    nav: list[object] = ["README.md"]
    for title, places in SECTIONS.items():
        listed = [page for place in places for page in ([place] if place.endswith(".md") else pages_of(place))]
        pages = list(dict.fromkeys(listed))
        nav.append({title: [LIST_OF_DECISIONS, *pages] if title == "Decisions" else pages})
    config["nav"] = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the list of decisions, and a page for each file outside `docs` that a page links to."""
    lines = [f"* [{title_of(DOCS / page)}]({Path(page).name})" for page in pages_of("decisions")]
    files.append(File.generated(config, LIST_OF_DECISIONS, content="# Decisions\n\n" + "\n".join(lines) + "\n"))
    for path in notebooks.stored():
        text, pictures = notebooks.page_of(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    for target in sorted({target for page in files.documentation_pages() for target in outside(page)}):
        files.append(File.generated(config, page_of(target), content=shown(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files outside `docs` go to their pages, links to folders to their lists."""
    here = DOCS / page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        target = (here.parent / link[2]).resolve()
        if "://" in link[2] or not target.exists():
            return link[0]
        if target.is_dir() and target.is_relative_to(DOCS):
            return f"{link[1]}{link[2].rstrip('/')}/index.md{link[3]}"
        if target.is_relative_to(DOCS):
            return link[0]
        up = "../" * page.file.src_uri.count("/")
        return f"{link[1]}{up}{page_of(target)})"

    return LINK.sub(moved, markdown)


def title_of(path: Path) -> str:
    """The first heading of a page."""
    return next(
        line.removeprefix("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")
    )


def outside(page: File) -> set[Path]:
    """The files of the repository outside `docs` that a page links to."""
    if page.generated_by is not None or page.src_uri == LIST_OF_DECISIONS:
        return set()
    here = (DOCS / page.src_uri).parent
    links = {link[2] for link in LINK.finditer(page.content_string) if "://" not in link[2]}
    targets = {(here / link).resolve() for link in links}
    return {target for target in targets if target.is_file() and not target.is_relative_to(DOCS)}


def page_of(target: Path) -> str:
    """Where the page of a file is."""
    return f"files/{target.relative_to(ROOT).as_posix()}.md"


def shown(target: Path) -> str:
    """The page of a file: its text as it is."""
    name = target.relative_to(ROOT).as_posix()
    text = target.read_text(encoding="utf-8")
    fence = "`" * max(4, *(len(run) + 1 for run in re.findall("`+", text)), 4)
    return f"# {name}\n\n{fence}{LANGUAGES.get(target.suffix, 'text')}\n{text}\n{fence}\n"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme takes what lets a search run without a server from another host; the site has its own."""
    return output.replace(FOREIGN_WORKER, get_relative_url(WORKER, page.url))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page of a missing address, which a server alone shows."""
    return output_content.replace(FOREIGN_WORKER, f"/{WORKER}")
