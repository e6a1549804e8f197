"""Make one HTML page of a run: latency by stage, modes and why, bandwidth, energy, server load, tables, events.

The page needs no network and no server: open it, or send it to a colleague. A run is the .jsonl file of run_recorder,
or a bag with the topics offload/latency, offload/mode, offload/bandwidth, offload/power, server/status and
/diagnostics. kapao/people and agrnav/semantic_grid add the origin of carried results. A bag needs ROS: source
devel/setup.bash first.

Examples:
  edge-offload report runs/last.jsonl                 writes runs/last.html
  edge-offload report walk.bag -o walk.html
  edge-offload report walk.bag --namespace robot1     one robot of a bag with several
  edge-offload report runs/last.jsonl --json figures.json
"""

from __future__ import annotations

import argparse
import pathlib
from typing import List

from edge_offload.errors import BadInput
from edge_offload.outputs import add_output, check_output, write_each, write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("run_file", type=pathlib.Path, metavar="RUN", help="a run's .jsonl or .bag")
    add_output(parser, "-o", "--output", type=pathlib.Path, metavar="HTML", help="page to write (RUN with .html)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the figures as JSON too")
    parser.add_argument("--title", default="", help="title of the page (name of the file)")
    parser.add_argument("--namespace", default="", help="namespace of the robot, in a bag with several robots")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.dashboard.bag import open_run
    from edge_offload.report.columns import RunColumns
    from edge_offload.report.page import render_page
    from edge_offload.report.summary import summarise_run, table_rows

    if not args.run_file.is_file():
        raise BadInput(f"no file {args.run_file}", remedy="give the .jsonl file or the bag of a run")
    output = args.output or args.run_file.with_suffix(".html")
    if output.resolve() == args.run_file.resolve():
        raise BadInput(f"{output} is the run itself", remedy="name another page by -o")
    check_output(output)
    rows, reading = open_run(args.run_file, args.namespace)
    columns = RunColumns().add_records(rows)
    record = summarise_run(columns)
    notes = []
    if reading.bad:
        notes.append(f"{reading.bad} lines of the file hold no record and are left out: {reading.first_problem}")
    _print_table(table_rows(record), notes)
    write_each(
        lambda: write_text(output, render_page(columns, record, args.title or args.run_file.name, notes)),
        lambda: records.write(args.json, "report", record) if args.json else None,
    )
    print(f"wrote {output}")
    return 0


def _print_table(table: List[List[str]], notes: List[str]) -> None:
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
    for note in notes:
        print(note)
