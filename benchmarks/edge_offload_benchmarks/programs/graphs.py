"""Graphs of changing size: torch_geometric."""

from __future__ import annotations

from typing import Any

import torch

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, length_of, prepare_module


def _add_graph(kind: str, varies: bool) -> None:
    @add_program(f"torch_geometric/{kind.lower()}{'_sizes' if varies else ''}", varies=varies)
    def make(device: str) -> Infer:
        import torch_geometric.nn as gnn

        torch.manual_seed(0)
        network = prepare_module(
            getattr(gnn, kind)(in_channels=8, hidden_channels=16, num_layers=2, out_channels=4), device
        )

        def infer(number: int) -> Any:
            nodes = length_of(number, (10, 14, 12, 20)) if varies else 12
            chooser = torch.Generator().manual_seed(number)
            edges = torch.randint(0, nodes, (2, 3 * nodes), generator=chooser)
            with torch.no_grad():
                return network(draw_noise(number, nodes, 8).to(device), edges.to(device)).cpu()

        return infer


_add_graph("GCN", False)
_add_graph("GCN", True)
_add_graph("GAT", True)
_add_graph("GraphSAGE", True)
_add_graph("GIN", True)


@add_program("torch_geometric/pooled_batch", varies=True)
def _make_pooled(device: str) -> Infer:
    import torch_geometric.nn as gnn

    torch.manual_seed(0)
    network = prepare_module(gnn.GraphSAGE(in_channels=8, hidden_channels=16, num_layers=2), device)

    def infer(number: int) -> Any:
        sizes = [length_of(number + k, (6, 9, 7)) for k in range(3)]
        nodes = sum(sizes)
        edges = torch.randint(0, nodes, (2, 2 * nodes), generator=torch.Generator().manual_seed(number)).to(device)
        batch = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes)).to(device)
        with torch.no_grad():
            return gnn.global_mean_pool(network(draw_noise(number, nodes, 8).to(device), edges), batch).cpu()

    return infer
