"""What a release needs: the changelog, the CI, the hooks and the pages for contributors."""

import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from recipe_runs import ROOT

import hf_lenctrl


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")
}
JOBS = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]


def runs(job: dict) -> list[str]:
    """The commands of a job, with each value of its matrix in place of the expression."""
    commands = [step["run"] for step in job["steps"] if "run" in step]
    rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
    return [re.sub(r"\${{ matrix\.(\w+) }}", lambda m, row=row: row[m[1]], text) for text in commands for row in rows]


def test_the_newest_release_of_the_changelog_is_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, newest = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", text, flags=re.M)[:2]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert first == ("Unreleased", "") and newest == (hf_lenctrl.__version__, str(citation["date-released"]))
    assert len(text.split(f"## [{hf_lenctrl.__version__}]")[1].split("\n## ")[0].splitlines()) < 60  # a page


def test_ci_runs_on_the_lowest_and_the_newest_python_of_the_project():
    python = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", c)]
    assert PROJECT["requires-python"] == ">=" + python[0]
    ci = WORKFLOWS["ci"]["jobs"]
    assert ci["test"]["strategy"]["matrix"]["python"] == [python[0], python[-1]]
    rows = ci["ranges"]["strategy"]["matrix"]["include"]
    assert {row["versions"]: row["python"] for row in rows} == {"lowest": python[0], "newest": python[-1]}
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml"))
    assert {*re.findall(r'"(3\.\d+)"', text)} <= {*python}
    assert WORKFLOWS["weekly"][True]["schedule"]  # YAML reads the key `on` as true
    assert any("install --upgrade transformers" in command for job in JOBS for command in runs(job))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_command_of_the_ci_and_of_the_release_exists():
    release = (ROOT / "RELEASE.md").read_text(encoding="utf-8")
    text = "\n".join([*(command for job in JOBS for command in runs(job)), release])
    targets = {*re.findall(r"^make ([\w-]+)$", text, flags=re.M)}
    assert {"quality", "test", "test-lowest", "test-newest"} <= targets
    assert subprocess.run(["make", "-n", *sorted(targets)], cwd=ROOT, capture_output=True).returncode == 0
    uploads = re.findall(r"^hf upload user/\S+ ((?:models|data)/\S+)", release, flags=re.M)
    scripts = re.findall(r"\bpython (\w\S+\.py)|bash (\S+)", text)
    assert len(uploads) >= 3 and all((ROOT / path).is_dir() for path in uploads)
    assert scripts and all((ROOT / (one or other)).is_file() for one, other in scripts)
    assert all((ROOT / path).exists() for path in re.findall(r"`((?:tests|app|hf_lenctrl)/\S+\.\w+)`", release))


def test_the_hooks_are_those_of_make_quality_and_a_limit_on_file_size():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    known = {hook["id"]: hook for repository in hooks for hook in repository["hooks"]}
    assert known["check-added-large-files"]["args"] == ["--maxkb=1000"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("ruff-check", "ruff-format", "mypy"):
        command = known[name]["entry"].removeprefix(".venv/bin/").removesuffix(" --fix")
        assert f"$(BIN)/{command}" in makefile


def test_the_templates_are_forms_that_github_reads():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])
            assert all(field["attributes"]["label"] for field in form["body"])
    for name in (".github/PULL_REQUEST_TEMPLATE.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "RELEASE.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert all((ROOT / link).exists() for link in re.findall(r"\]\((?!http)([^)#]+)\)", text))
        assert all((ROOT / page).is_file() for page in re.findall(r"\b([A-Z]+\.md)\b", text))
