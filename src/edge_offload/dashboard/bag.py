"""Records of a run from a bag file. Needs ROS's rosbag; the bag contains the message definitions."""

from __future__ import annotations

import pathlib
from typing import Dict, Iterator, Optional, Tuple

from edge_offload.dashboard import messages
from edge_offload.dashboard.stream import Reading, Record
from edge_offload.errors import BadInput, EdgeOffloadError


def read_bag(path: pathlib.Path, reading: Optional[Reading] = None, namespace: str = "") -> Iterator[Record]:
    """Yield the records of the messages in a bag, in the order of their receipt.

    Topics are recognised by the end of their name and by their type, because the robot may run in a namespace.

    Args:
        path: of the bag.
        reading: counts the good and the bad messages.
        namespace: selects one robot of several; empty: the only one.

    Raises:
        BadInput: the file is no bag, or holds no topic of edge_offload.
        EdgeOffloadError: rosbag is not installed here.
    """
    try:
        import rosbag
    except ImportError as error:
        raise EdgeOffloadError(
            f"cannot read {path}: no rosbag here ({error})", remedy="source ROS's setup.bash, or give the .jsonl file"
        ) from error
    reading = Reading() if reading is None else reading
    if not path.is_file():
        raise BadInput(f"no bag file {path}")
    try:
        with rosbag.Bag(str(path)) as bag:
            recorded = bag.get_type_and_topic_info().topics
            kinds = _choose_topics({name: info.msg_type for name, info in recorded.items()}, namespace, path)
            changes = messages.DiagnosticChanges()
            for topic, message, received in bag.read_messages(topics=list(kinds)):
                yield from _convert_message(kinds[topic], message, received.to_sec(), changes, reading)
    except (rosbag.ROSBagException, OSError, ValueError) as error:
        if isinstance(error, EdgeOffloadError):  # BadInput is a ValueError, too
            raise
        remedy = "'rosbag reindex' repairs a bag that was cut off"
        raise BadInput(f"cannot read {path}: {error}", remedy=remedy) from error
    if not reading.good:
        raise BadInput(f"{path} holds no message of a run")


def _choose_topics(types: Dict[str, str], namespace: str, path: pathlib.Path) -> Dict[str, str]:
    """Return the topics of one robot and /diagnostics, each with the kind of its records.

    Raises:
        BadInput: there are none, or those of several robots.
    """
    chosen: Dict[str, str] = {}
    prefix = f"/{namespace.strip('/')}/" if namespace.strip("/") else "/"
    for name, message_type in sorted(types.items()):
        kind = _record_kind(name, message_type)
        if not kind or (kind != "diagnostic" and not f"/{name.lstrip('/')}".startswith(prefix)):
            continue
        if kind != "diagnostic" and kind in chosen.values():
            first_topic = next(topic for topic, other in chosen.items() if other == kind)
            raise BadInput(f"{path} holds several robots: {first_topic} and {name}", remedy="choose one by --namespace")
        chosen[name] = kind
    if not set(chosen.values()) - {"diagnostic"}:
        topics = ", ".join(topic.name for topic in messages.TOPICS.values())
        where = f" in the namespace {namespace}" if namespace else ""
        raise BadInput(f"{path} holds no topic of a run{where}", remedy=f"record {topics}")
    return chosen


def _record_kind(name: str, message_type: str) -> str:
    """Return the kind of records that a topic gives; empty if none."""
    if name == messages.DIAGNOSTICS_TOPIC and message_type == "diagnostic_msgs/DiagnosticArray":
        return "diagnostic"
    for kind, topic in messages.TOPICS.items():
        tail = f"/{topic.name}"
        # server/offload/latency reports the same frames as offload/latency, from the server's side
        matches = f"/{name.lstrip('/')}".endswith(tail) and not name.endswith(f"/server{tail}")
        if matches and message_type == f"{topic.package}/{topic.message}":
            return kind
    return ""


def _convert_message(
    kind: str, message: object, t_s: float, changes: messages.DiagnosticChanges, reading: Reading
) -> Iterator[Record]:
    """Yield the records of one message received at ``t_s`` (s since 1970), and count them in ``reading``."""
    if kind == "diagnostic":
        converted = changes.changed_records(message, t_s)
    else:
        record = messages.TOPICS[kind].convert(message, t_s)
        converted = [] if record is None else [record]
        if record is None and kind in ("latency", "mode"):  # None of other kinds is no fault: unknown watts
            error = BadInput("a message names a mode that this version does not know")
            reading.count_bad_line(messages.TOPICS[kind].name, error)
    reading.good += len(converted)
    yield from converted


def is_bag(path: pathlib.Path) -> bool:
    """Return whether the file starts as a bag does."""
    try:
        with path.open("rb") as stream:
            return stream.read(8) == b"#ROSBAG "
    except OSError:
        return False


def open_run(path: pathlib.Path, namespace: str = "") -> Tuple[Iterator[Record], Reading]:
    """Open a bag or a JSON-lines file; return its records, and the counts that grow while they are read."""
    from edge_offload.dashboard.stream import read

    reading = Reading()
    return (read_bag(path, reading, namespace) if is_bag(path) else read(path, reading)), reading
