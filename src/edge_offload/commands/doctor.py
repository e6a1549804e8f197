"""Report the parts of edge_offload that work on this machine, and remedies for the others.

Each line is one of

  ok        present and working
  warn      absent or unusual; something is slower or unavailable without it
  missing   edge_offload does not work without it

Examples:
  edge-offload doctor
  edge-offload doctor --server tcp://gpu:5700     also connect to a server and measure the link
  edge-offload doctor --build                     build the C++ libraries now, instead of on first use (some minutes)
  edge-offload doctor --json report.json          the same as JSON (- for standard output)

The exit code is 1 if anything is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from edge_offload.outputs import add_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--server", metavar="ADDR", help="server to connect to, such as tcp://gpu:5700")
    parser.add_argument("--keys", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument("--build", action="store_true", help="build all C++ libraries first")
    add_output(parser, "--json", metavar="FILE", help="write the findings as JSON ('-': standard output)")


def run(args: argparse.Namespace) -> int:
    """Look, print, and return 1 if something necessary is missing."""
    from edge_offload import records
    from edge_offload.checkup import check

    findings = check(args.server, args.keys, args.build)
    record = {"findings": [asdict(finding) for finding in findings]}
    if args.json == "-":
        records.validate("doctor", record)
        json.dump(record, sys.stdout, indent=2)
        print()
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            print(f"{finding.level:8}{finding.what:{width}}  {finding.detail}{remedy}")
        if args.json:
            records.write(args.json, "doctor", record)
    return 1 if any(finding.level == "missing" for finding in findings) else 0
