"""The workflows hold to what keeps them safe, and run nothing of their own."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from normbook.data.catalogue import SOURCES

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> Any:
    return yaml.safe_load(request.param.read_text(encoding="utf-8"))


WEEKLY = {
    "make audit",
    "make bare",
    "make builds",
    "make data",
    "make elsewhere",
    "make in-the-wild",
    "make locked",
    "make pdf",
    "make sabotage",
    "make test-site",
    "make triton",
}


def jobs(workflow: Any) -> list[Any]:
    return list(workflow["jobs"].values())


def test_there_are_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == [
        "gpu",
        "publish",
        "release",
        "test",
        "weekly",
    ]


def test_every_action_is_pinned_by_its_commit(workflow: Any) -> None:
    uses = [
        step["uses"]
        for job in jobs(workflow)
        for step in job["steps"]
        if "uses" in step
    ]
    assert uses
    for action in uses:
        assert re.fullmatch(r"(actions|pypa)/[\w-]+@[0-9a-f]{40}", action)


def test_nothing_is_permitted_but_by_the_job_that_needs_it(workflow: Any) -> None:
    assert workflow["permissions"] == {}
    writes = {
        name
        for job in jobs(workflow)
        for name, level in job["permissions"].items()
        if level == "write"
    }
    assert writes <= {"pages", "id-token", "contents"}
    # What may write to the repository is one step of one job, which reads main alone.
    writing = [
        job for job in jobs(workflow) if job["permissions"].get("contents") == "write"
    ]
    for job in writing:
        assert job["if"] == "github.ref == 'refs/heads/main'"
        assert job["steps"][-1]["run"] == "make colab SEND=1"


def test_every_job_has_a_timeout(workflow: Any) -> None:
    assert all(0 < job["timeout-minutes"] <= 45 for job in jobs(workflow))


def test_no_checkout_keeps_the_token(workflow: Any) -> None:
    for job in jobs(workflow):
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def test_code_of_a_pull_request_never_meets_secrets_or_the_gpu() -> None:
    for path in WORKFLOWS:
        triggers = yaml.safe_load(path.read_text(encoding="utf-8"))[True]  # "on"
        assert "pull_request_target" not in triggers
        assert ("pull_request" in triggers) == (path.stem == "test")


def test_the_steps_are_those_of_the_makefile(workflow: Any) -> None:
    commands = [s["run"] for job in jobs(workflow) for s in job["steps"] if "run" in s]
    others = [command for command in commands if not command.startswith("make ")]
    assert all("torch.cuda.is_available" in command for command in others)


def test_what_is_skipped_here_runs_in_the_weekly_jobs() -> None:
    weekly = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text("utf-8"))
    runs = {s.get("run") for job in weekly["jobs"].values() for s in job["steps"]}
    assert runs >= WEEKLY
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for path in (ROOT / "tests").rglob("test_triton_*.py"):
        assert str(path.relative_to(ROOT)) in makefile
    (names,) = re.findall(r"^DATA \?= (.*)$", makefile, re.MULTILINE)
    # The one server of CIFAR-10 can take longer than a job may.
    assert {*names.split(), "cifar-10"} == {s.name for s in SOURCES.values() if s.files}
    fetched = re.findall(r"-rs -n 2 --dist loadfile (.*)$", makefile, re.MULTILINE)
    assert all((ROOT / name).exists() for name in fetched[0].split())


def test_the_weekly_job_has_all_frameworks_that_tests_ask_for() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (imported,) = re.findall(r"ELSEWHERE\) -c 'import (.*)'$", makefile, re.MULTILINE)
    tests = (ROOT / "tests/test_conventions_elsewhere.py").read_text("utf-8")
    asked_for = {
        str(word.value)
        for node in ast.walk(ast.parse(tests))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "installed"
        for word in node.args
        if isinstance(word, ast.Constant)
    }
    assert "keras" in asked_for
    missing = asked_for - set(imported.split(", "))
    assert {name for name in missing if f"{name}." not in imported} == set()
    pinned = re.findall(r"^(\w+)==", (ROOT / "tests/elsewhere.txt").read_text(), re.M)
    assert {name.split(".")[0] for name in asked_for} <= set(pinned)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_has_what_the_constraints_say_each_with_its_hash() -> None:
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    wanted = {normal(n): v for n, v in re.findall(r"^([\w.-]+)==(\S+)", pins, re.M)}
    lock = (ROOT / "requirements.lock").read_text("utf-8").replace("+cpu", "")
    entries = re.split(r"\n(?=\S)", lock.strip())
    locked = {}
    for entry in entries:
        found = re.match(
            r"([\w.-]+)==(\S+)(?:\s+\\\s+--hash=sha256:[0-9a-f]{64})+$", entry
        )
        assert found, f"without hashes, run make lock: {entry[:60]}"
        locked[normal(found[1])] = found[2]
    # What builds the package stands beside what constraints.txt pins.
    assert {n: v for n, v in locked.items() if n in wanted} == wanted
    assert locked.keys() - wanted.keys() == {"setuptools", "wheel"}


def test_a_release_is_sent_only_if_the_owner_has_turned_it_on() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    release = yaml.safe_load(text)
    assert release[True] == {"release": {"types": ["published"]}}
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    assert build["if"] == "vars.PUBLISH_TO_PYPI == 'true'"
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi"
    assert "secrets." not in text
