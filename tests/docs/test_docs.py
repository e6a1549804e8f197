"""The fenced commands of README and docs, run as a user would paste them: in a fresh HOME, in a copy of the checkout.

The shell of README is one that has nothing; on the other pages the reader has done ``source devel/setup.bash``.
:mod:`rules` says what is shortened. Several pages may run at the same time only on machines that do not share ports, so
each page gets a loopback of its own where this user may make one.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from tests.docs import rules
from tests.docs.blocks import blocks_of
from tests.docs.pages import Page
from tests.docs.prose import is_generated, lines_of_prose, sentences_of
from tests.docs.terminals import Terminals

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = pathlib.Path("README.md")
PAGES = [README, *(path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.md")))]
WITH_COMMANDS = [page for page in PAGES if blocks_of(ROOT / page)]
EVERY_RUN = (
    README,
    *(pathlib.Path("docs") / name for name in (
        "tutorial/first-program.md", "tutorial/demo-robot.md", "how-to/server-and-keys.md",
        "how-to/why-did-it-fall-back.md", "how-to/gpu.md",
    )),
)  # fmt: skip
"""Pages of a user's first day; the commands of the others are run by ``scripts/test --all``."""
BUILT = (".venv", "build", "devel")
MOST_NOT_RUN = 0.1
PASSED_VARIABLES = ("PATH", "LANG", "TERM", "PIP_", "UV_", "SSL_", "REQUESTS_", "http_proxy", "https_proxy", "no_proxy")
NETWORK_COMMAND = ("unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 3600")


def test_at_most_the_declared_share_of_commands_is_skipped_with_reasons():
    blocks = [(page, block) for page in PAGES for block in blocks_of(ROOT / page)]
    commands = sum(len(block.commands) for _, block in blocks)
    skipped = sum(len(block.commands) for page, block in blocks if block.not_run)
    assert skipped <= MOST_NOT_RUN * commands, f"{skipped} of {commands} commands are not run"
    assert f"{MOST_NOT_RUN:.0%}".replace("%", " %") in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(len(block.not_run) > 10 for _, block in blocks if block.not_run), "a reason says more"


#: (image or link, where it leads) in Markdown.
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_a_page_exist(page):
    for target in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert linked.exists(), f"{page} links to {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in anchors, f"{page} links to {target}"


#: A file of the sources as a page names it, from any folder on.
_SOURCE = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|cpp|h|c|launch))(?:::\w+)?`")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_sources_that_a_page_names_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [name for name in _SOURCE.findall(text) if not any(path.endswith(f"/{name}") for path in _sources())]
    assert not missing


@functools.lru_cache(maxsize=None)
def _sources():
    folders = ("src", "benchmarks", "research", "training", "tests", "examples", "launch")
    return [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.*")]


#: Two cells of a row that begin with a measured figure.
_FIGURES = re.compile(r"^\|(?:.*\|)?(?: [~−-]?[\d.,]+(?: (?:ms|s|[kM]B|µs|%))? \|.*){2}$", re.MULTILINE)
MOST_LINES = 170


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "explanation").glob("*.md")), ids=lambda page: page.name)
def test_explanations_are_short_and_hold_no_measurements(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    assert not _FIGURES.search(text), "tables of figures stand in docs/results"


#: Pages that people write; the others say by what they are written.
HAND_WRITTEN = [page for page in (*PAGES, pathlib.Path("CONTRIBUTING.md")) if not is_generated(ROOT / page)]


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=str)
def test_sentences_and_lines_of_a_page_are_short(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    sentences = sentences_of(text)
    long = [sentence for sentence in sentences if len(sentence.split()) > 35]
    assert not long, f"sentences of more than 35 words: {long}"
    assert sum(len(sentence.split()) for sentence in sentences) <= 20 * max(1, len(sentences))
    assert not [line for line in lines_of_prose(text) if len(line) > 120]


def test_an_entry_of_the_changelog_is_one_short_sentence():
    text = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    entries = [" ".join(entry.split()) for entry in re.findall(r"^\* ((?:.|\n  )+)", text, re.MULTILINE)]
    assert len(entries) > 50
    assert not [entry for entry in entries if len(entry.split()) > 25]
    assert all(f"\n{version} (" in text for version in ("0.1.0", "0.2.0"))


def test_a_long_sentence_is_seen():
    sentence = " ".join(["Word", *["word"] * 35])
    assert max(len(text.split()) for text in sentences_of(f"Short one. {sentence}.\n\n- item\n")) == 36
    assert sentences_of("```sh\na b c d e\n```\n| a | b c d e f |\n\n    indented code\n") == []


def test_a_table_of_measurements_is_seen():
    assert _FIGURES.search("| local | 3.82 s | 12 |")
    assert not _FIGURES.search("| LZ4 | 2 codecs | fast |")


def test_every_recorded_result_has_a_page_and_its_command():
    folder = ROOT / "docs" / "results"
    recorded = {path.stem for path in folder.glob("*.json")} - {"sources"}
    assert recorded == {path.stem for path in folder.glob("*.md")} - {"README"}
    for name in recorded:
        head = (folder / f"{name}.md").read_text(encoding="utf-8").split("\n|")[0]
        assert all(f"- {word}: " in head for word in ("Command", "Date", "Machine")), name


@pytest.mark.process
def test_generated_pages_are_those_of_the_code_and_a_stale_one_is_named(tmp_path):
    if not (ROOT / "devel" / "setup.bash").exists():
        pytest.skip("the workspace is not built: run scripts/setup")
    pages = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", pages)
    check = ("scripts/docs", "--check", "--folder", str(pages))
    current = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    for name in ("results/busy.md", "reference/launch.md"):
        with (pages / name).open("a", encoding="utf-8") as page:
            page.write("One line more.\n")
    stale = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (current.returncode, current.stderr) == (0, "")
    assert stale.returncode == 1
    assert sorted(stale.stderr.splitlines()) == [
        "docs/reference/launch.md is stale: run scripts/docs",
        "docs/results/busy.md is stale: run scripts/docs",
    ]


@pytest.mark.parametrize(
    ("command", "printed", "works"),
    [
        ("rostopic echo -n 1 /server/status", "WARNING: topic [/x] does not appear to be published yet", False),
        ("rostopic echo -n 1 /server/status", "WARNING: topic [/x]\nstate: 1", True),
        ("roslaunch edge_offload agrnav.launch", "progress no result after 5 s", False),
        ("roslaunch edge_offload agrnav.launch", "progress 3 of 9999 results in 2 s: server", True),
        ("roslaunch edge_offload kapao_tracking.launch", "progress 3 results in 2 s: server", True),
    ],
)
def test_outputs_of_commands_are_judged(command, printed, works):
    assert bool(re.search(rules.stays(command), printed)) == works


@pytest.fixture
def user(tmp_path):
    """A checkout and a HOME that nobody has used; what the set-up has built is there."""
    if not (ROOT / "devel" / "setup.bash").exists():
        pytest.skip("the workspace is not built: run scripts/setup")
    checkout = tmp_path / "edge_offload"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    for name in BUILT:
        (checkout / name).symlink_to(ROOT / name)
    # what was downloaded and built is kept between users; what they make themselves, and engines, are not
    retained = pathlib.Path(os.environ.get("EDGE_OFFLOAD_CACHE") or pathlib.Path.home() / ".cache" / "edge_offload")
    cache = tmp_path / "home" / ".cache" / "edge_offload"
    cache.mkdir(parents=True)
    for path in retained.iterdir():
        if path.name not in ("training", "engines", "last-error.log"):
            (cache / path.name).symlink_to(path)
    return tmp_path


def test_the_program_of_the_tutorial_prints_the_same_in_every_run(capsys):
    """The page promises a CPU's bits: a reader compares two runs."""
    torch = pytest.importorskip("torch")
    page = (ROOT / "docs" / "tutorial" / "first-program.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed = []
    for _ in range(2):
        torch.seed()  # as in a process of its own
        exec(program.replace(".cuda()", ""), {})
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 20


def test_uv_gets_the_environment_to_install_into():
    """It looks at VIRTUAL_ENV and .venv only, and the pages call it by its path, in no activated environment."""
    lines = [line for page in PAGES for line in (ROOT / page).read_text(encoding="utf-8").splitlines()]
    calls = [line for line in lines if re.search(r"uv pip install .*\S", line)]
    assert calls
    assert all("--python " in line for line in calls), calls


@pytest.fixture
def isolated_network():
    """What a command is started by to see a loopback of its own, where this user may make one; else nothing."""
    with subprocess.Popen(NETWORK_COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        up = holder.stdout.readline() == b"up\n"
        yield ("nsenter", "--target", str(holder.pid), "--net") if up else ()
        holder.kill()


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page), marks=() if page in EVERY_RUN else pytest.mark.release)
        for page in WITH_COMMANDS
    ],
)
def test_the_commands_of_a_page_work(page, user, isolated_network):
    environment = {key: value for key, value in os.environ.items() if key.startswith(PASSED_VARIABLES)}
    # as on a terminal, which shows every line at once
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(HOME=str(user / "home"), ROS_MASTER_URI="http://localhost:11311")
    place = user / "terminals"
    place.mkdir()
    terminals = Terminals(place, str(user / "edge_offload"), environment, isolated_network)
    try:
        if page != README:
            terminals.run("source devel/setup.bash", rules.LIMIT_S)
        checkout = user / "edge_offload"
        video = rules.sample_video(user / "home" / ".cache" / "edge_offload")
        shown = Page(terminals, checkout, str(video), str(checkout), lambda text: print(text, flush=True))
        failures = shown.run(blocks_of(ROOT / page))
    finally:
        terminals.end()

    assert not failures, "\n".join(failures)
