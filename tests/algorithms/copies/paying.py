"""Graphs on which copies pay: activations that are large beside the times, read again by later blocks."""

from hypothesis import strategies as st

from remat.ir import GraphBuilder, Kind


@st.composite
def paying_graphs(draw):
    """Chains of 3 to 7 blocks, some of which read the output of an earlier one too."""

    def number(low, high):
        return draw(st.integers(low, high))

    count, b = number(3, 7), GraphBuilder("paying")
    b.data("x", 1, Kind.INPUT)
    b.data("t", 1, Kind.TANGENT)
    for i in range(count):
        b.data(f"a{i}", number(1, 9))
        b.data(f"g{i}", number(1, 3), Kind.GRADIENT)
        b.data(f"w{i}", 1, Kind.PARAM_GRAD)
        skipped = [f"a{number(0, i - 2)}"] if i > 1 and number(0, 2) == 0 else []
        b.forward(f"F{i}", reads=[f"a{i - 1}" if i else "x", *skipped], writes=[f"a{i}"], time=number(1, 6))
    b.loss("L", reads=[f"a{count - 1}"], writes=["t"], time=1)
    for i in reversed(range(count)):
        reads = [f"g{i + 1}" if i < count - 1 else "t", *([f"a{i}"] if number(0, 1) else []), f"a{i - 1}" if i else "x"]
        b.backward(f"B{i}", reads=reads, writes=[f"g{i}", f"w{i}"], time=number(1, 6))
    return b.build()
