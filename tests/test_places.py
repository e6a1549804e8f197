"""Where files lie: the usual places, and users who have none (``docker --user``, a home that cannot be written)."""

import os
import pathlib
import pwd
import subprocess
import sys

import pytest

from edge_offload import cache, cli, places
from edge_offload.errors import BadInput
from edge_offload.native import recipe

VARIABLES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", places.CACHE, places.KEYS)
ALL = (cache.cache_dir, recipe.cache_folder, places.blobs_folder, places.keys_folder, places.pool_folder)
ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def bare(monkeypatch):
    """No variable says where anything lies."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def unknown_user(bare):
    """A uid that the system has no name for."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    bare.setattr(pwd, "getpwuid", unknown)
    return bare


def of_all():
    return [str(function()) for function in ALL]


def test_a_relative_folder_of_xdg_is_ignored(bare):
    """As the specification has it: else every folder in which a command runs would get a cache."""
    bare.setenv("HOME", "/h")
    bare.setenv("XDG_CACHE_HOME", "cache")
    bare.setenv("XDG_CONFIG_HOME", "./config")
    assert cache.cache_dir() == pathlib.Path("/h/.cache/edge_offload")
    assert places.keys_folder() == pathlib.Path("/h/.config/edge_offload/keys")


def test_ordinary_users_have_the_usual_places(bare):
    bare.setenv("HOME", "/home/ann")
    cached, config = "/home/ann/.cache/edge_offload", "/home/ann/.config/edge_offload"
    assert of_all() == [cached, f"{cached}/native", f"{cached}/blobs", f"{config}/keys", f"{config}/pool"]


def test_the_home_is_from_the_system_without_its_variable(bare):
    assert str(cache.cache_dir()) == f"{pwd.getpwuid(os.getuid()).pw_dir}/.cache/edge_offload"


def test_variables_name_other_places(unknown_user):
    unknown_user.setenv("XDG_CACHE_HOME", "/c")
    unknown_user.setenv("XDG_CONFIG_HOME", "/k")
    cached = "/c/edge_offload"
    assert of_all() == [cached, f"{cached}/native", f"{cached}/blobs", "/k/edge_offload/keys", "/k/edge_offload/pool"]
    unknown_user.setenv(places.CACHE, "/cc")
    unknown_user.setenv(places.KEYS, "/kk")
    assert of_all()[:4] == ["/cc", "/cc/native", "/cc/blobs", "/kk"]


@pytest.mark.parametrize("function", ALL)
def test_without_a_home_the_remedy_is_reported(unknown_user, function):
    with pytest.raises((BadInput, recipe.Unsupported)) as refused:
        function()
    assert "HOME is not set" in refused.value.cause
    assert refused.value.remedy.startswith("set ")


def test_a_tilde_of_an_unknown_user_is_refused_with_a_message(unknown_user):
    with pytest.raises(BadInput, match="no such home directory"):
        places.expand("~/weights.pt")


@pytest.mark.parametrize(
    "arguments",
    [
        ["keys", "list"],
        ["keys", "new"],
        ["serve", "--bind", "tcp://127.0.0.1:0"],
        ["exec", "--mode", "lazy", "--", sys.executable, "-c", "import torch"],
        ["track", "--frames", "2"],
        ["models", "list"],
    ],
)
@pytest.mark.parametrize("home", ["", "/nonexistent/home", "/dev/null"])
def test_no_command_ends_in_a_traceback(unknown_user, capsys, arguments, home):
    if home:
        unknown_user.setenv("HOME", home)
        unknown_user.setattr(pathlib.Path, "mkdir", _not_allowed)
    code = cli.main(arguments)
    stderr = capsys.readouterr().err
    assert "Traceback" not in stderr
    assert "a defect of" not in stderr
    if code:
        assert "set EDGE_OFFLOAD_" in stderr.strip().splitlines()[-1]


def _not_allowed(self, *_args, **_kwargs):
    raise PermissionError(13, "Permission denied", str(self))


def test_the_check_up_names_missing_parts(unknown_user, capsys):
    cli.main(["doctor"])
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    assert "set EDGE_OFFLOAD_CACHE" in out.out
    assert "set EDGE_OFFLOAD_KEYS" in out.out
    assert "apt install g++" not in out.out, "a compiler is there"


def test_a_defect_is_one_line_all_the_same(unknown_user, capsys, monkeypatch):
    monkeypatch.setattr(cli.outputs, "check_outputs", lambda args: 1 // 0)
    assert cli.main(["keys", "list"]) == cli.DEFECT
    (line,) = capsys.readouterr().err.strip().splitlines()
    place = pathlib.Path(line.rpartition(" ")[2])
    assert "ZeroDivisionError" in place.read_text(encoding="utf-8")
    place.unlink()


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="another uid needs root")
@pytest.mark.parametrize("home", [None, "/", "/root"])
def test_a_container_with_a_uid_without_a_name(tmp_path, home):
    """As ``docker run --user 12345`` starts it: HOME unset, or a folder that this uid cannot write."""
    code = "import os, sys; os.setgid(12345); os.setuid(12345); sys.argv = ['edge-offload', 'keys', 'new']\n"
    code += "from edge_offload import cli; sys.exit(cli.main())"
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment.update({"HOME": home} if home else {})
    # imported first: the checkout may be where the uid cannot read
    first = "import edge_offload.cli, edge_offload.commands.keys, edge_offload.link.security.keys; "
    done = subprocess.run(
        [sys.executable, "-c", first + code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "set EDGE_OFFLOAD_KEYS" in done.stderr
