"""Write the notebooks for Colab: each begins with a cell that fetches the book.

Colab opens one notebook, without the package and the records beside it. What fetches
them has to name the repository, and no address is written in the sources. So the
publishing workflow, which knows it, runs this and sends the result to the branch
``colab``, where the Colab button of a published page leads.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book/_ext"))
import repository_links  # noqa: E402

CELL = """\
#@title The package of this book: run this first, on Colab
import importlib.util

if importlib.util.find_spec("normbook") is None:
    !git clone -q --depth 1 --branch {branch} {address} /content/normbook
    %pip install -q "/content/normbook[book]"
    %cd -q /content/normbook/book
"""
# Colab hides the code of a form, Jupyter what is marked so.
FOLDED = {
    "cellView": "form",
    "jupyter": {"source_hidden": True},
    "tags": ["hide-input"],
}


def with_first_cell(notebook: Any, address: str, branch: str) -> Any:
    """Return a copy of a notebook that begins with the cell."""
    source = CELL.format(address=address, branch=branch)
    cell = nbformat.v4.new_code_cell(source, id="colab", metadata=FOLDED)
    result = nbformat.from_dict(notebook)
    result.cells.insert(0, cell)
    return result


def write(folder: Path, address: str, branch: str) -> int:
    """Write the notebooks into ``book`` of an emptied folder; return how many."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "book").mkdir(parents=True)
    found = sorted((ROOT / "book").glob("*.ipynb"))
    for path in found:
        notebook = nbformat.read(path, as_version=4)
        nbformat.write(
            with_first_cell(notebook, address, branch), folder / "book" / path.name
        )
    return len(found)


def git(*words: str, folder: Path, **settings: str) -> None:
    """Run git in a folder; its complaint is the error."""
    environment = os.environ | settings
    done = subprocess.run(["git", *words], cwd=folder, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"colab: git {words[0]} failed; what it said stands above")


def send(folder: Path, remote: str) -> None:
    """Replace the branch ``colab`` of a repository by what is in a folder.

    A token in the variable TOKEN goes to git by its environment: command lines are seen
    by every process of a machine.
    """
    author = ["-c", "user.name=normbook", "-c", "user.email=normbook@localhost"]
    git("init", "-q", folder=folder)
    git("add", "book", folder=folder)
    git(*author, "commit", "-q", "-m", "Notebooks for Colab", folder=folder)
    settings = {}
    if token := os.environ.get("TOKEN"):
        secret = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        settings = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "http.extraheader",
            "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {secret}",
        }
    git(
        "push",
        "-q",
        "--force",
        remote,
        "HEAD:refs/heads/colab",
        folder=folder,
        **settings,
    )


def main() -> None:
    """Write the notebooks, and send them where that is asked for."""
    parser = argparse.ArgumentParser(description="Write the notebooks for Colab.")
    parser.add_argument("--out", type=Path, default=ROOT / "_build/colab")
    parser.add_argument("--send", action="store_true", help="to the branch colab")
    arguments = parser.parse_args()
    address = repository_links.repository_url(os.environ, ROOT)
    if address is None:
        raise SystemExit(
            "colab: the notebooks need the address of their repository, and none is "
            "known; set GITHUB_REPOSITORY=owner/name, or git's remote origin"
        )
    count = write(arguments.out, address, repository_links.branch(os.environ))
    print(f"{count} notebooks that fetch {address}: {arguments.out}")
    if arguments.send:
        send(arguments.out, f"{address}.git")


if __name__ == "__main__":
    main()
