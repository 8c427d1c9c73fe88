"""Steps for the tests of pictures, exports and pages."""

from remat.ir import GraphBuilder, Kind, LayerOption, Link, Offload, Prefetch, Run, Schedule, validate
from remat.viz.residency import residency

SPOOF = "</script><b>a\u202egnp\x1b[31m"


def layered(name="tiny", activation="a"):
    """One layer with a phantom of 7 bytes; two nodes named for their phase."""
    b = GraphBuilder(name)
    b.data("x", 0, Kind.INPUT)
    b.data(activation, 4)
    b.data("t", 1, Kind.TANGENT)
    b.data("g", 4, Kind.PARAM_GRAD)
    b.forward("F", reads=["x"], writes=[activation], time=2, scope="layers.0")
    b.loss("L", reads=[activation], writes=["t"], time=1)
    b.backward("B", reads=["t"], writes=["g"], time=3, twin="F")
    b.layer("F", "B", [LayerOption(forward=2, backward=3, phantom=7, backward_reads=(activation,))], phantom="P")
    return b.build()


def copied(**names):
    """A step that copies its phantom to the host and back, and runs its forward once more, replayed."""
    graph = layered(**names)
    schedule = Schedule((Run("F"), Offload("P"), Run("L"), Run("F", 1), Prefetch("P"), Run("B")))
    return residency(graph, schedule, validate(graph, schedule, None, Link.symmetric(gb_per_s=1)))


def recomputed(first="a"):
    """Two activations, of which the first is dropped and made again; the backward has a workspace, one gradient two writers."""
    b = GraphBuilder("again")
    b.data("x", 0, Kind.INPUT)
    for name, size, kind in (
        (first, 40, Kind.ACTIVATION), ("h", 30, Kind.ACTIVATION), ("t", 1, Kind.TANGENT), ("s", 20, Kind.PARAM_GRAD),
    ):  # fmt: skip
        b.data(name, size, kind)
    b.forward("F", reads=["x"], writes=[first], time=2000, scope="net.low")
    b.forward("H", reads=[first], writes=["h"], time=3000, scope="net.high")
    b.loss("L", reads=["h"], writes=["t"], time=1000)
    b.backward("BH", reads=["t", "h"], writes=["s"], time=4000, twin="H", workspace=5)
    b.backward("BF", reads=["t", first], writes=["s"], time=5000, twin="F")
    graph = b.build()
    schedule = Schedule.from_runs(graph, ["F", "H", "L", "BH", "F", "BF"])
    return residency(graph, schedule, validate(graph, schedule))
