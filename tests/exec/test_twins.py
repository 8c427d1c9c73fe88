import pytest
import torch
from torch import nn
from torch.nn import functional

from remat.exec.weightless import capture_without_weights, graph_without_weights
from remat.ir import Phase
from remat.zoo import large


class Branches(nn.Module):
    """Two uses of one value, a view between, and a loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(4, 4)

    def forward(self, x):
        hidden = functional.gelu(self.first(x))
        folded = self.second(hidden.view(-1, 4)).view_as(hidden)
        return torch.tanh(hidden + folded).mean()


@pytest.fixture(scope="module")
def graph():
    return graph_without_weights(lambda: (Branches(), torch.randn(6, 8, requires_grad=False)))


def kind(name):
    return name.rstrip("0123456789").rstrip("_")


def test_each_backward_node_has_the_forward_node_it_belongs_to(graph):
    pairs = {(kind(node.name), kind(node.twin)) for node in graph.computes if node.twin}
    assert ("gelu_backward", "gelu") in pairs
    assert ("mm", "addmm") in pairs
    assert ("tanh_backward", "tanh") in pairs or ("mul", "tanh") in pairs
    weights = [node.twin for node in graph.computes if node.twin and kind(node.twin) == "addmm"]
    assert len(set(weights)) == 2


def test_sums_of_gradients_that_stay_nodes_belong_to_nobody():
    graph = capture_without_weights(lambda: (Branches(), torch.randn(6, 8)), fold_sums="none").graph()
    sums = [node for node in graph.computes if node.phase is Phase.BACKWARD and kind(node.name) == "add"]
    assert len(sums) == 1
    assert sums[0].twin == ""


def test_twins_of_equal_layers_lie_in_their_own_layer():
    graph = capture_without_weights(lambda: large.gpt(3, width=64, batch=2, time=16, vocabulary=50)).graph()
    scopes = {node.name: node.scope for node in graph.computes}
    backward = [node for node in graph.computes if node.phase is Phase.BACKWARD]
    twinned = [node for node in backward if node.twin]
    assert len(twinned) > 0.8 * len(backward)
    assert all(scopes[node.twin] == node.scope for node in twinned)
    layers = [sum(node.scope.startswith(f"blocks.{layer}.") for node in twinned) for layer in range(3)]
    assert layers[0] == layers[1] == layers[2] > 0
