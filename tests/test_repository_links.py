"""No address of the repository is written down: each is derived, or left out."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import repository_links as links
from sphinx.errors import ConfigError

NAME = "https://github.com/someone/a-book"


@pytest.mark.parametrize(
    "remote",
    [
        NAME,
        NAME + ".git",
        NAME + "/",
        "git@github.com:someone/a-book.git",
        "ssh://git@github.com/someone/a-book.git",
        "ssh://git@github.com:22/someone/a-book",
        "https://someone:secret-token@github.com/someone/a-book.git\n",
    ],
)
def test_a_remote_becomes_a_web_address_without_secrets(remote: str) -> None:
    assert links.web_address(remote) == NAME


@pytest.mark.parametrize(
    "remote",
    [
        "",
        "/srv/git/a-book.git",
        "../a-book",
        "file:///srv/a-book",
        "http://127.0.0.1:3000/someone/a-book",
        "git@git.example.org:someone/a-book.git",
        "https://github.com/",
        "https://github.com/someone/a book",
    ],
)
def test_other_remotes_are_not_guessed_at(remote: str) -> None:
    assert links.web_address(remote) is None


def test_the_runner_s_variables_come_first(tmp_path: Path) -> None:
    environment = {"GITHUB_REPOSITORY": "someone/a-book"}
    assert links.repository_url(environment, tmp_path) == NAME
    environment["GITHUB_SERVER_URL"] = "https://git.example.org/"
    expected = "https://git.example.org/someone/a-book"
    assert links.repository_url(environment, tmp_path) == expected


def test_the_remote_is_read_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE"):  # set inside a git hook
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert links.repository_url({}, tmp_path) is None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert links.repository_url({}, tmp_path) is None
    add = ["git", "-C", str(tmp_path), "remote", "add", "origin", NAME + ".git"]
    subprocess.run(add, check=True)
    assert links.repository_url({}, tmp_path) == NAME


def test_without_git_there_is_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert links.repository_url({}, tmp_path) is None


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("", "main"),
        ("refs/heads/next", "next"),
        ("refs/heads/fix/typo", "fix/typo"),
        ("refs/tags/v1.0", "v1.0"),
        ("refs/pull/12/merge", "main"),
    ],
)
def test_links_point_to_the_branch_or_tag(reference: str, expected: str) -> None:
    assert links.branch({"GITHUB_REF": reference}) == expected


def test_the_site_s_address_ends_on_a_slash_or_is_unknown() -> None:
    assert links.site_url({}) is None
    assert links.site_url({"SITE_URL": " "}) is None
    assert links.site_url({"SITE_URL": "https://a.org/b"}) == "https://a.org/b/"


def test_half_an_address_of_the_site_is_refused() -> None:
    with pytest.raises(ConfigError, match="SITE_URL must begin with https://"):
        links.site_url({"SITE_URL": "a.org/b"})


@pytest.mark.parametrize(
    ("address", "has_buttons", "is_launched"),
    [
        (None, False, False),
        (NAME, True, True),
        ("https://gitlab.com/someone/a-book", True, False),
    ],
)
def test_buttons_stand_only_where_they_lead_somewhere(
    address: str | None,
    has_buttons: bool,
    is_launched: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "repository_url", lambda *_: address)
    config = SimpleNamespace(html_theme_options={"repository_url": ""})
    links.add_repository(SimpleNamespace(srcdir="."), config)  # type: ignore[arg-type]
    options = config.html_theme_options
    assert options["repository_url"] == (address or "")
    assert ("use_issues_button" in options) == has_buttons
    assert ("launch_buttons" in options) == is_launched
