"""``python -m edge_offload.native [--warn] [--into FOLDER] [device] [runner] [codecs] [promises]``: build these.

All are built if none is named.

With ``--warn`` (for the catkin build) what cannot be built is one line of warning, and no failure. With ``--into`` (for
``scripts/wheels``) libraries are built for a wheel.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from edge_offload.errors import EdgeOffloadError
from edge_offload.native.libraries import GROUPS
from edge_offload.native.recipe import cache_folder


def main() -> int:
    """Build and print where libraries are kept; 1 if something could not be built."""
    parser = argparse.ArgumentParser(prog="python -m edge_offload.native", description="Build the native libraries.")
    parser.add_argument("--warn", action="store_true", help="one line of warning for what cannot be built, and exit 0")
    parser.add_argument("--into", type=pathlib.Path, metavar="FOLDER", help="build for a wheel, whose folder this is")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(GROUPS)}; all without a name")
    args = parser.parse_args()
    unknown = set(args.names) - set(GROUPS)
    if unknown:
        parser.error(f"there is nothing named {', '.join(sorted(unknown))}")
    failures = {}
    for title, recipes in (GROUPS[name] for name in args.names or GROUPS):
        try:
            for recipe in recipes:
                recipe.build() if args.into is None else recipe.build_into(args.into)
        except EdgeOffloadError as error:
            failures[title] = error
    if not failures:
        print(args.into or cache_folder())
        return 0
    if args.warn:
        why = next(iter(failures.values()))
        print(f"edge_offload: warning: not built: {', '.join(failures)}: {why}", file=sys.stderr)
        return 0
    for title, failure in failures.items():
        print(f"{title}: {failure}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
