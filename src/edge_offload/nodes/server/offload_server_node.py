"""serves robots: runs their networks on this machine, and shows its operator the robots' results.

Publishes:
  server/kapao/people       edge_offload_msgs/PersonArray of every frame of every robot: computed here in mode server,
                            reported by the robot in every other mode
  server/agrnav/semantic_grid  edge_offload_msgs/SemanticGrid, server/agrnav/occupancy nav_msgs/OccupancyGrid and
  server/agrnav/path        nav_msgs/Path of every sweep of every robot, as reported by the robot
  server/offload/latency    edge_offload_msgs/Latency as reported by the robot; not in mode server, where only the
                            robot measures it
  server/status             edge_offload_msgs/ServerStatus

Robots connect to ~bind over an encrypted link. On loopback keys are made on first use; any other address needs keys
that you make ('edge-offload keys --help'). Topics never cross that link: this node publishes on its own host's master.
"""

from __future__ import annotations

import math
from typing import Any, Dict

import psutil
import rospy
from nav_msgs.msg import OccupancyGrid, Path
from std_msgs.msg import Header

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.execute.collector import Collector
from edge_offload.execute.devices import AUTO
from edge_offload.link.security.keys import KeyStore
from edge_offload.models.registry import entries
from edge_offload.models.scenes.labels import LABELS
from edge_offload.nodes.common.base import Node
from edge_offload.nodes.common.cores import resolve_cores
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.common.ticker import Ticker
from edge_offload.nodes.inference.compose import latency_message, ros_duration
from edge_offload.nodes.people.people_messages import people_message
from edge_offload.nodes.scene import scene_report
from edge_offload.nodes.server.server_results import FrameFacts, ResultInterpreter
from edge_offload.power.nvml import GpuLoad
from edge_offload.server import status as server_status
from edge_offload.server.results import ServerFrameResult
from edge_offload.server.server import OffloadServer
from edge_offload.server.settings import Compute, Models
from edge_offload.timing import STAGES, InferenceReport
from edge_offload_msgs.msg import Latency, ModelStatus, PersonArray, PromiseStatus, SemanticGrid, ServerStatus


class OffloadServerNode(Node):
    """See the module's docstring."""

    name = "offload_server_node"
    computes = True
    declared = (
        Param("bind", "tcp://127.0.0.1:5700", "address to listen on; port 0: any free"),
        Param("device", AUTO, "auto (the GPU if there is one), cpu or cuda; emulated:TABLE.csv"),
        Param(
            "engine",
            "exact",
            "what computes models: exact (torch, on a GPU as CUDA graphs, on a CPU as compiled steps), eager, auto, "
            "or a name from 'edge-offload engines'",
        ),
        Param("threads", 0, "compute threads; 0: torch's default", low=0),
        Param("cores", "any", "CPU cores to stay on: 0, 2-3, first, second or any"),
        Param("keys", "", "key directory; none: the user's"),
        Param("allow", [], "factories (package.module:factory) that robots may also open"),
        Param("preload", "", "model to build before the first robot asks for it"),
        Param("options", {}, "options that override the robots': {kapao_s: {checkpoint: /s.safetensors}}"),
        Param("promises", False, "promise robots a bound on the accuracy that sharing may cost them"),
        Param("pool", "", "address of a pool of GPUs that computes pool_model; see 'edge-offload pool'"),
        Param("pool_model", "", "model that the pool computes"),
        Param("pool_profiles", "", "absolute path of the folder that 'edge-offload pool profile' wrote"),
        Param("pool_slo", 0.2, "seconds from a request's arrival to the pool's answer", low=0.001),
        Param("status_rate", 1.0, "status messages per second", low=0.05, high=50.0),
    )

    def start(self) -> None:
        params = self.params
        self._gpu = GpuLoad()
        self._interpreter = ResultInterpreter(params["allow"], params["options"])
        pool = None
        if params["pool"]:
            from edge_offload.server.pool.settings import make_settings  # a server without a pool needs none of it

            if params["promises"]:
                raise BadInput("pool and promises are two ways to share a GPU", remedy="choose one")
            of = (params["pool"], params["pool_model"], params["pool_slo"], params["pool_profiles"])
            pool = make_settings(*of, "", params["threads"] or 1)
        self._server = OffloadServer(
            params["bind"],
            compute=Compute(
                params["device"], params["engine"], params["threads"] or None, resolve_cores(params["cores"])
            ),
            models=Models(params["allow"], params["options"]),
            keys=KeyStore(params["keys"]) if params["keys"] else None,
            promises=params["promises"],
            gpus=pool,
        )
        for name in filter(None, (params["preload"], params["pool_model"] if pool else "")):
            self._server.preload(name)
        self._people = rospy.Publisher("server/kapao/people", PersonArray, queue_size=100)
        self._grid = rospy.Publisher("server/agrnav/semantic_grid", SemanticGrid, queue_size=8)
        self._occupancy = rospy.Publisher("server/agrnav/occupancy", OccupancyGrid, queue_size=8)
        self._path = rospy.Publisher("server/agrnav/path", Path, queue_size=8)
        self._latency = rospy.Publisher("server/offload/latency", Latency, queue_size=100)
        self._status = rospy.Publisher("server/status", ServerStatus, queue_size=4, latch=True)
        self._server.on_result(self._on_result)
        self._server.start()
        self.health.value("address", self._server.address)
        self.health.value("device", self._server.device)
        self._collector = Collector()
        self._collector.start()
        self._ticker = Ticker(1.0 / params["status_rate"], self._publish_state, self.fault)
        self._ticker.start()
        rospy.loginfo(f"listening on {self._server.address}, device {self._server.device}")

    def stop(self) -> None:
        if hasattr(self, "_ticker"):
            self._ticker.close()
            self._collector.stop()
            self._status.publish(self._status_message(ServerStatus.STOPPING))
        if hasattr(self, "_server"):
            self._server.close()
        if hasattr(self, "_gpu"):
            self._gpu.close()

    def _publish_state(self) -> None:
        self._collector.collect_new()
        message = self._status_message(ServerStatus.READY)
        states = self._server.pool.engine_states()
        for model, (state, _) in states.items():
            self.health.value(f"engine of {model}", state)
        amber = [f"{model}: {words}" for model, (words, wrong) in states.items() if wrong]
        if amber:
            self.health.warn("engine", "; ".join(amber))
        else:
            self.health.clear("engine")
        self.health.value("robots", ", ".join(message.robot_names) or "none")
        self.health.value("inferences", message.inferences)
        self.health.value("load", float(message.load))
        self._status.publish(message)

    def _status_message(self, state: int) -> ServerStatus:
        status = self._server.status()
        names = self._server.robots()
        return ServerStatus(
            header=Header(stamp=rospy.Time.now()),
            address=self._server.address,
            version=_read_version(),
            device=status.device,
            engine=self._server.engine,
            state=state,
            uptime=ros_duration(status.uptime_s),
            robots=len(names),
            robot_names=names,
            queue_length=status.queue_length,
            load=status.load,
            gpu_load=self._gpu.mean_share(),
            memory=psutil.Process().memory_info().rss,
            inferences=status.inferences,
            refused=status.refused,
            failed=status.failed,
            bytes_in=status.bytes_in,
            bytes_out=status.bytes_out,
            models=[
                ModelStatus(name, facts.count, ros_duration(facts.mean_s), ros_duration(facts.p99_s))
                for name, facts in sorted(status.models.items())
            ],
            idle=status.idle,
            batches=status.batches,
            promises=[promise_message(one) for one in status.promises],
        )

    def _on_result(self, result: ServerFrameResult) -> None:
        """One frame of one robot; called in the server's thread for results."""
        if result.meta.get("probe"):
            return
        scene = getattr(entries().get(result.model), "kind", "") == "scene"
        if scene and not result.cost:
            # what the network said, megabytes a sweep: its robot makes a scene of it, and tells that
            return
        try:
            facts = FrameFacts(result.meta, pictures=not scene)
            header = Header(facts.seq, rospy.Time(*divmod(facts.stamp_ns, 10**9)), facts.frame_id)
            if scene:
                made = scene_report.rebuild_messages(result.outputs, result.meta, header, LABELS)
                self._grid.publish(made.grid)
                self._occupancy.publish(made.occupancy)
                self._path.publish(made.path)
            else:
                report = InferenceReport(result.mode, result.model)
                people = self._interpreter.interpret_people(result, facts)
                self._people.publish(people_message(header, report, facts.size, people))
            if result.cost:
                self._latency.publish(latency_message(_parse_report(result), header, facts.camera))
        except EdgeOffloadError as error:
            self.health.count("bad reports")
            self.health.warn("reports", f"{result.peer}: {error}")
            rospy.logwarn_throttle(5.0, f"a report of {result.peer} cannot be used: {error}")
        except Exception as error:
            self.fault("results", error)
        else:
            self.health.count("results")


def promise_message(status: server_status.PromiseStatus) -> PromiseStatus:
    """Make the message of how a robot that has a promise is served."""
    return PromiseStatus(
        robot=status.robot,
        model=status.model,
        bound=status.bound,
        drop=status.drop,
        interval=status.interval,
        batch=status.batch,
        late_share=status.late,
        turns=status.turns,
        note=status.note,
    )


def _parse_report(result: ServerFrameResult) -> InferenceReport:
    """The cost of a frame as its robot states it.

    Raises:
        BadInput: it states something that is no cost.
    """
    cost: Dict[str, Any] = dict(result.cost)
    try:
        stages = {stage: float(cost.get("stages_s", {}).get(stage, 0.0)) for stage in STAGES}
        return InferenceReport(
            mode=result.mode,
            model=result.model,
            total_s=float(cost["total_s"]),
            stages_s=stages,
            bytes_up=_parse_count(cost, "bytes_up"),
            bytes_down=_parse_count(cost, "bytes_down"),
            round_trips=_parse_count(cost, "round_trips"),
            emulated_slowdown=float(cost.get("emulated_slowdown", 1.0)),
            fallback_reason=str(cost.get("fallback_reason", ""))[:1000],
            overlap_s=float(cost.get("overlap_s", math.nan)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"a report's cost cannot be read ({error})") from error


def _parse_count(cost: Dict[str, Any], key: str) -> int:
    return min(max(0, int(cost.get(key, 0))), 2**32 - 1)


def _read_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("edge_offload")
    except metadata.PackageNotFoundError:
        return "unknown"


NODE = OffloadServerNode
