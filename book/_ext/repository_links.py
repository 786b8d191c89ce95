"""Derive every address of the repository and of the site when the book is built.

No address is written in the sources, so a fork or a mirror links to itself:

- the repository comes from ``GITHUB_REPOSITORY`` (set by GitHub's runners), else
  from ``git remote get-url origin``;
- the site's own address comes from ``SITE_URL`` (set by the publishing workflow).

What is not known is left out: without a repository there are no launch, edit and
issue buttons; without a site address no sitemap and no link previews.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError

# Hosts whose web address is the same as the address that git clones from.
HOSTS = ("github.com", "gitlab.com", "codeberg.org")

# What a link to the site shows beside its title.
PICTURE = "_static/learning_rates.png"
PICTURE_IN_WORDS = (
    "Test accuracy against learning rate, with and without batch normalization: with "
    "it a small network learns at every rate from 0.1 to 3."
)


def web_address(remote: str) -> str | None:
    """Turn the address of a git remote into one for a browser, or None.

    User names, passwords and tokens in the remote never reach a page.
    """
    remote = remote.strip()
    if scp := re.fullmatch(r"(?:[^@/]+@)?([\w.-]+):(?!//)(.+)", remote):
        host, path = scp.groups()
    else:
        parts = urlsplit(remote)
        host, path = parts.hostname or "", parts.path
    path = path.strip("/").removesuffix(".git")
    if host not in HOSTS or not re.fullmatch(r"[\w.-]+(/[\w.-]+)+", path):
        return None
    return f"https://{host}/{path}"


def repository_url(environment: Mapping[str, str], root: Path) -> str | None:
    """Return the repository's web address, or None where none is known."""
    if name := environment.get("GITHUB_REPOSITORY"):
        server = environment.get("GITHUB_SERVER_URL", "https://github.com")
        return f"{server.rstrip('/')}/{name}"
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "remote", "get-url", "origin"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # a downloaded archive, on a machine without git
        return None
    return web_address(found.stdout) if found.returncode == 0 else None


def branch(environment: Mapping[str, str]) -> str:
    """Return the branch or tag that links point to."""
    reference = environment.get("GITHUB_REF", "")
    if reference.startswith(("refs/heads/", "refs/tags/")):
        return reference.split("/", 2)[2]
    return "main"


def site_url(environment: Mapping[str, str]) -> str | None:
    """Return the address the site is published at, with a closing slash, or None."""
    address = environment.get("SITE_URL", "").strip()
    if not address:
        return None
    if urlsplit(address).scheme not in ("http", "https"):
        raise ConfigError(
            f"SITE_URL must begin with https:// or http://, got {address!r}; "
            "give the full address of the site or leave it unset."
        )
    return address.rstrip("/") + "/"


def add_repository(app: Sphinx, config: Config) -> None:
    """Add the buttons that need a repository to the theme's options."""
    url = repository_url(os.environ, Path(app.srcdir))
    if url is None:
        return
    options: dict[str, Any] = {
        "repository_url": url,
        "repository_branch": branch(os.environ),
        "path_to_docs": "",
        "use_repository_button": True,
        "use_edit_page_button": True,
        "use_issues_button": True,
    }
    if urlsplit(url).hostname == "github.com":  # the two services read from there
        options["launch_buttons"] = {
            "notebook_interface": "jupyterlab",
            "binderhub_url": "https://mybinder.org",
            "colab_url": "https://colab.research.google.com",
        }
    config.html_theme_options.update(options)


def open_on_colab(
    app: Sphinx, pagename: str, templatename: str, context: Any, doctree: Any
) -> None:
    """Lead Colab to the notebook that fetches the book, as ``tools/colab.py`` wrote it.

    The theme knows one branch for all its buttons.
    """
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if button.get("text") == "Colab":
                place = f"/blob/{branch(os.environ)}/"
                button["url"] = button["url"].replace(place, "/blob/colab/")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("config-inited", add_repository)
    if address := site_url(os.environ):
        app.config.html_baseurl = address
        app.connect("html-page-context", open_on_colab, priority=900)  # after the theme
        app.setup_extension("sphinx_sitemap")
        app.config.sitemap_url_scheme = "{link}"
        app.setup_extension("sphinxext.opengraph")
        app.config.ogp_site_url = address
        app.config.ogp_social_cards = {"enable": False}
        app.config.ogp_image = address + PICTURE
        app.config.ogp_image_alt = PICTURE_IN_WORDS
    return {"parallel_read_safe": True, "parallel_write_safe": True}
