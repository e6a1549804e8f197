"""Base class of all nodes: parameters, /diagnostics, counted callbacks, draining, exit codes, --help."""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from typing import Any, Callable, ClassVar, Dict, Protocol, Tuple, Type

import diagnostic_updater
import rosgraph
import rospy

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.heap import retain_freed_memory
from edge_offload.nodes.common import params as parameters
from edge_offload.nodes.common.clock import ClockWatch
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.topic_types import TopicTypes

USAGE, FAILED = 2, 1
COMMON = (Param("folder", "", "where relative paths are looked up (launch files: where roslaunch was called)"),)
"""Parameters that every node has."""


class Owner(Protocol):
    """A node, or a part of one, as what takes its messages in sees it; see :class:`Node`."""

    params: Dict[str, Any]
    health: Health

    def callback(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """``function`` such that an exception is told and counted."""

    def fault(self, where: str, error: BaseException) -> None:
        """Tell and count an exception that nobody expected."""


class Node:
    """Base of the nodes. A subclass reads its parameters, starts, and stops; the rest is done here.

    The docstring of the subclass's module is what ``--help`` prints, followed by the table of parameters.

    Attributes:
        name: default name of the node.
        declared: its private parameters.
        written: names of those that it sets itself. A node that is started again finds what the one before it wrote.
        computes: whether a network is computed in its process, which then keeps the memory that tensors give back.
        params: their values, checked.
        health: what it says on /diagnostics.
        exit_code: what the process returns.
        running: set once the node has started, so that its stop() is sure to be called.
    """

    name: ClassVar[str]
    declared: ClassVar[Tuple[Param, ...]] = ()
    written: ClassVar[Tuple[str, ...]] = ()
    computes: ClassVar[bool] = False

    def __init__(self, params: Dict[str, Any], health: Health) -> None:
        self.params = params
        self.health = health
        self.exit_code = 0
        self.running = threading.Event()

    def start(self) -> None:
        """Open everything and subscribe. An exception ends the node with a non-zero exit code."""

    def stop(self) -> None:
        """Finish what was taken up, then close whatever is open (the start may have failed). Publishing still works."""

    def refresh(self) -> None:
        """Called before every report to /diagnostics (once a second of wall time): bring the figures up to date."""

    def finish(self, reason: str, exit_code: int = 0) -> None:
        """End the node by itself."""
        self.exit_code = exit_code

        def end() -> None:
            # a message may end the node before its start is through: rospy forgets hooks that come after the shutdown
            self.running.wait()
            rospy.signal_shutdown(reason)

        # stop() may wait for the thread that calls this
        threading.Thread(target=end, daemon=True).start()

    def callback(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """``function`` such that an exception is told and counted (rospy itself only logs it)."""

        @functools.wraps(function)
        def guarded(message: Any) -> None:
            try:
                function(message)
            except EdgeOffloadError as error:
                self.health.count("bad messages")
                self.health.warn("input", str(error))
                rospy.logwarn_throttle(5.0, f"{function.__name__.strip('_')}: {error}")
            except Exception as error:
                self.fault(function.__name__.strip("_"), error)

        return guarded

    def fault(self, where: str, error: BaseException) -> None:
        """Tell and count an exception that nobody expected."""
        self.health.count("exceptions")
        self.health.error(f"exception in {where}", f"{where}: {type(error).__name__}: {error}")
        details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        rospy.logerr_throttle(5.0, f"{where}: {details}")


class DiagnosticsReporter:
    """Reports a node's health on /diagnostics, once a second of wall time: simulated time may stand still."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._updater = diagnostic_updater.Updater()
        self._updater.setHardwareID(os.uname().nodename)
        self._updater.add("health", self._fill_status)
        self._lock = threading.Lock()
        self._clock, self._types = ClockWatch(node.health), TopicTypes(node.health)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_reports, name="diagnostics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self.publish_report()

    @property
    def has_subscribers(self) -> bool:
        return bool(self._updater.publisher.get_num_connections())

    def publish_report(self) -> None:
        with self._lock:
            self._updater.force_update()

    def _run_reports(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self._clock.refresh()
                self._types.refresh()
                self._node.refresh()
                self.publish_report()
            except Exception as error:
                self._node.fault("refresh", error)

    def _fill_status(self, status: Any) -> Any:
        report = self._node.health.make_report()
        status.summary(report.level, report.message)
        for key, value in sorted(report.values.items()):
            status.add(key, value)
        return status


def render_help(node: Type[Node]) -> str:
    """Text of ``--help``: the docstring of the node's module, and its parameters."""
    module_doc = (sys.modules[node.__module__].__doc__ or "").strip()
    common = (
        "Every node reports to /diagnostics and exits non-zero when it cannot start. Topic names are relative:\n"
        "remap them with name:=other, set a parameter with _name:=value."
    )
    shown = f"\n\nParameters:\n{parameters.render_table((*node.declared, *COMMON))}"
    return f"{node.name}: {module_doc}{shown}\n\n{common}"


def run_node(node_class: Type[Node]) -> int:
    """Run a node until it is shut down.

    Returns:
        Exit code: 0, 1 when it could not start or ended by a failure, 2 for unknown arguments.

    Raises:
        KeyboardInterrupt: it was told to end before it began.
    """
    arguments = rospy.myargv(sys.argv)[1:]
    if any(argument in ("-h", "--help") for argument in arguments):
        print(render_help(node_class))
        return 0
    if arguments:
        print(f"{node_class.name}: unknown arguments {' '.join(arguments)} (see --help)", file=sys.stderr)
        return USAGE
    if not rosgraph.is_master_online():
        print(f"{node_class.name}: no ROS master at {rosgraph.get_master_uri()}; start roscore", file=sys.stderr)
        return FAILED
    # in a pipe (roslaunch | tee, a journal, a container's log) lines would come in blocks, most of them at the end
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if node_class.computes:
        retain_freed_memory()
    try:
        rospy.init_node(node_class.name)
    except rospy.exceptions.ROSInitException:
        if rospy.core.is_shutdown_requested():
            raise KeyboardInterrupt from None
        raise
    return _run_node(node_class)


def _run_node(node_class: Type[Node]) -> int:
    health = Health()
    health.warn("start", "starting")
    node = node_class({}, health)
    diagnostics = DiagnosticsReporter(node)
    diagnostics.publish_report()
    try:
        raw = rospy.get_param("~", {})
        declared = (*node_class.declared, *COMMON)
        node.params = parameters.read(declared, raw)
        misspelt = parameters.undeclared_names(declared, set(raw) - set(node_class.written))
        if misspelt:
            health.warn("parameters", f"unknown parameters: {', '.join('~' + name for name in misspelt)}")
            rospy.logwarn(f"unknown parameters {', '.join('~' + name for name in misspelt)} (see --help)")
        _go_to(node.params["folder"])
        diagnostics.start()
        node.start()
    except Exception as error:
        expected = isinstance(error, EdgeOffloadError)
        rospy.logfatal(f"cannot start: {error if expected else traceback.format_exc()}")
        health.error("start", f"cannot start: {error}")
        node.exit_code = FAILED
        _stop_node(node, diagnostics)
        return FAILED
    health.clear("start")
    if rospy.is_shutdown():
        # ended from outside while it started
        _stop_node(node, diagnostics)
        return node.exit_code
    rospy.on_shutdown(lambda: _stop_node(node, diagnostics))
    node.running.set()
    rospy.spin()
    return node.exit_code


def _go_to(folder: str) -> None:
    """Roslaunch starts nodes in ~/.ros, where no relative path of the caller's leads anywhere."""
    if not folder:
        return
    try:
        os.chdir(folder.strip())
    except OSError as error:
        # another machine, or it is gone: absolute paths still work, others are told by name
        rospy.logwarn(f"relative paths are looked up in {os.getcwd()}: {folder.strip()}: {error.strerror}")


def _stop_node(node: Node, diagnostics: DiagnosticsReporter) -> None:
    try:
        node.stop()
    except Exception as error:
        node.exit_code = node.exit_code or FAILED
        node.fault("stop", error)
    node.refresh()
    _report_end(diagnostics)


def _report_end(diagnostics: DiagnosticsReporter) -> None:
    """Report a last time, and give rospy's sending threads a moment: they drop what they hold when they are closed."""
    # a node that fails at once ends before those who listen have connected
    for _ in range(20):
        if diagnostics.has_subscribers:
            break
        rospy.rostime.wallsleep(0.1)
    diagnostics.close()
    rospy.rostime.wallsleep(0.3)
