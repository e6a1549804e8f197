"""Network of agrnav_node: a scene completer whose module runs on the robot or on a server."""

from __future__ import annotations

from typing import ClassVar, Tuple

from edge_offload.errors import BadInput
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.models.sconet.completer import SceneCompleter
from edge_offload.models.voxels import grid_around
from edge_offload.nodes.common.params import Param
from edge_offload.nodes.inference.network import Network


class SceneNetwork(Network):
    """A scene completer whose module runs here or on a server."""

    untrained = "the scene is not completed, results show what the sweep hit"
    # what the network says has megabytes: the coded scene is told instead (scene_report)
    report_results = False
    # 70 GFLOP take seconds on a processor core
    patience = TimeoutLimits(cap_s=60.0, first_s=30.0)
    # a minute or more: sweeps are completed here meanwhile
    waits_for_plans = False
    declared: ClassVar[Tuple[Param, ...]] = (
        Param("model", "sconet", "name of the model ('edge-offload models list')", choices=("sconet",)),
        *(param for param in Network.declared if param.name != "model"),
    )

    def build(self) -> SceneCompleter:
        params = self._params
        options = params["model_options"]
        unknown = sorted(set(options) - {"weights", "seed"})
        if unknown:
            raise BadInput(f"model sconet has no option {', '.join(unknown)}", remedy="it has: weights, seed")
        grid = grid_around(
            params["sensor_height"], params["voxel_size"], params["extent"] == "forward", params["cells"]
        )
        return SceneCompleter(grid=grid, **options)
