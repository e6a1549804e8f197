"""scripts/run before and beside what it starts: wrong arguments end at once, progress is one line on a terminal."""

from __future__ import annotations

import os
import pathlib
import pty
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.process

RUN = pathlib.Path(__file__).resolve().parents[1] / "scripts" / "run"


def test_a_wrong_argument_ends_it_before_the_set_up(tmp_path):
    done = subprocess.run(
        [RUN, "--frames", "abc", "video:=lab.mp4", "modee:=local", "--json", "/dev/null/out.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    frames, video, json, name = done.stderr.splitlines()
    assert "frames:=abc: give a whole number" in frames
    assert f"video:=lab.mp4: there is no such file (looked up in {tmp_path})" in video
    assert "cannot write /dev/null" in json
    assert "modee:=local: kapao_tracking.launch has no argument modee; is it mode?" in name


def test_the_set_up_starts_in_a_checkout_where_nothing_is_installed(tmp_path):
    """No package's metadata is there yet, as after ``git clone`` on a fresh machine."""
    names = ("scripts/run", "src", "research", "launch", "package.xml")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", *names], cwd=RUN.parents[1], capture_output=True, check=True, text=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(RUN.parents[1] / name, tmp_path / name)
    setup = tmp_path / "scripts" / "setup"
    setup.write_text("#!/bin/sh\necho set up\nexit 7\n")
    setup.chmod(0o755)
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [tmp_path / "scripts" / "run"], env=bare, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("set up\n", "", 7)


OUTPUT = "start\\nprogress 1 of 2\\nprogress 2 of 2\\nsummary\\n"
SHOW = f"source <(sed -n '/^show()/,/^}}/p' {RUN}); printf '{OUTPUT}' | show"


def test_progress_is_written_over_on_a_terminal_and_in_lines_elsewhere():
    plain = subprocess.run(["bash", "-c", SHOW], capture_output=True, text=True, check=True).stdout
    assert plain.splitlines() == ["start", "progress 1 of 2", "progress 2 of 2", "summary"]
    master, terminal = pty.openpty()
    subprocess.run(["bash", "-c", SHOW], stdout=terminal, check=True)
    shown = ""
    while "summary\r\n" not in shown:
        shown += os.read(master, 4096).decode()
    os.close(terminal)
    os.close(master)
    assert shown.replace("\r\n", "\n") == "start\n\r\033[K1 of 2\r\033[K2 of 2\nsummary\n"


LAUNCH = """for argument in "$@"; do case "$argument" in
json:=*) stem="${argument#json:=}"; stem="${stem%.*}";;
runs:=*) runs="${argument#runs:=}"; mkdir "$runs/$RUN"; ln -sfn "$RUN" "$runs/last"; stem="$runs/$RUN/summary";;
esac; done
[ -z "$stem" ] || for ending in json jsonl; do echo "$RUN" > "$stem.$ending"; done"""


def test_the_latest_run_has_the_path_of_readme_with_json_too(tmp_path):
    """'edge-offload report runs/last.jsonl' is of the run that was just made."""
    root = tmp_path / "clone"
    for place, text in (
        (root / "scripts" / "setup", ""),
        (root / "devel" / "setup.bash", ""),
        (tmp_path / "bin" / "roslaunch", LAUNCH),
    ):
        place.parent.mkdir(parents=True)
        place.write_text(f"#!/bin/bash\n{text}\n")
        place.chmod(0o755)
    shutil.copy(RUN, root / "scripts" / "run")
    (root / "src").symlink_to(RUN.parents[1] / "src")

    def latest(run: str, *arguments: str) -> str:
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RUN": run}
        environment["ROS_MASTER_URI"] = "http://127.0.0.1:1"
        command = [str(root / "scripts" / "run"), "--headless", "server:=none", *arguments]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=60)
        return (root / "runs" / "last.jsonl").read_text().strip()

    assert latest("first") == "first"
    assert latest("second", "--json", "out.json") == "second"
    assert (tmp_path / "out.jsonl").is_file()
    assert latest("third") == "third"
