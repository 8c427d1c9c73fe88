"""Graphs that several suites begin with."""

from remat.ir import Graph, GraphBuilder, Kind


def tiny_step(reads: str = "a") -> Graph:
    """Two forward nodes, a loss, and a backward node that reads `reads` and the tangent."""
    b = GraphBuilder("Tiny")
    b.data("x", 0, Kind.INPUT)
    b.data("a", 4)
    b.data("h", 3)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=["a"], time=2)
    b.forward("H", reads=["a"], writes=["h"], time=2)
    b.loss("L", reads=["h"], writes=["t"], time=1)
    b.backward("B", reads=["t", reads], writes=["g"], time=3, twin="F")
    return b.build()
