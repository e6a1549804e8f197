"""Write docs/reference (from the code) and docs/results (from recorded results), or say which pages are stale.

scripts/docs              write them
scripts/docs --check      write nothing; the exit code is 1 if a page is not what would be written
scripts/docs --shorten    take out of docs/results/*.json what no page shows: after a new record
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: argparse words its help differently from version to version.
HELP_OF = (3, 11)


def main() -> int:
    """Run the command line."""
    sys.path[:0] = [str(ROOT / folder) for folder in ("docs", "src", "benchmarks", "research", "training")]
    from generate import platforms, reference, results

    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("scripts/docs", description=__doc__, formatter_class=words)
    parser.add_argument("--check", action="store_true", help="write nothing, name the stale pages")
    parser.add_argument("--shorten", action="store_true", help="take out of recorded results what no page shows")
    parser.add_argument("--folder", default=ROOT / "docs", type=pathlib.Path, help="where the pages are (docs)")
    options = parser.parse_args()
    check, folder = options.check, options.folder
    if options.shorten:
        for path in results.shorten_records(folder / "results"):
            print(f"shortened {path}")
        return 0
    os.environ["COLUMNS"] = "100"
    pages = {**reference.pages(ROOT), **results.pages(ROOT), **platforms.pages(ROOT)}
    if sys.version_info[:2] == HELP_OF:
        try:
            pages.update(reference.help_pages())
        except ImportError as error:
            print(f"{error}: the messages of the nodes are built by scripts/setup", file=sys.stderr)
            return 1
    else:
        print(f"skipped: reference/cli.md and nodes.md, which Python {HELP_OF[0]}.{HELP_OF[1]} writes")
    stale = [name for name, text in pages.items() if _text(folder / name) != text]
    if check:
        for name in stale:
            print(f"docs/{name} is stale: run scripts/docs", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[name], encoding="utf-8")
        print(f"written docs/{name}")
    return 0


def _text(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
