"""A writer of one random module: what its lines draw on, and where they go."""

import contextlib
import random

WIDTHS = (6, 8, 12, 16, 24, 31)
KINDS = ("float64", "float32", "bfloat16", "autocast")
"""Types of parameters and inputs; "autocast": float32 under bfloat16 autocast."""


class Writer:
    """Lines of a module in writing. Every value in the stream has the shape (batch, length, width).

    Attributes:
        draw: decides everything.
        kind: one of `KINDS`.
        batch, length, width: of the stream.
        stream: names of values to build on, in the order they are written.
        linears: names of linear layers from width to width, to be used again.
    """

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.kind = self.draw.choice(KINDS)
        self.batch, self.length = self.draw.randint(2, 24), self.draw.randint(2, 12)
        self.width = self.draw.choice(WIDTHS)
        self.stream = ["x"]
        self.linears = []
        self.setup = []
        self.lines = []
        self.depth = 2
        self.count = 0

    def name(self, prefix):
        """A name that is new."""
        self.count += 1
        return f"{prefix}{self.count}"

    def any(self):
        """A value of the stream, more often a late one."""
        return self.stream[-1] if self.draw.random() < 0.6 else self.draw.choice(self.stream)

    def chance(self, share):
        return self.draw.random() < share

    def pick(self, *choices):
        return self.draw.choice(choices)

    def line(self, text):
        """A line of the forward."""
        self.lines.append("    " * self.depth + text)

    def layer(self, prefix, text):
        """A line of the constructor that sets an attribute; returns `self.name`."""
        name = self.name(prefix)
        self.setup.append(f"        self.{name} = {text}")
        return f"self.{name}"

    def buffer(self, prefix, text):
        """A buffer; returns `self.name`."""
        name = self.name(prefix)
        self.setup.append(f'        self.register_buffer("{name}", {text})')
        return f"self.{name}"

    def linear(self, inner=None):
        """A linear layer of the constructor, from width to width if nothing else is said."""
        bias = "" if self.chance(0.7) else ", bias=False"
        name = self.layer("linear", f"nn.Linear({self.width}, {inner or self.width}{bias})")
        if inner is None:
            self.linears.append(name)
        return name

    def value(self, text):
        """A new value of the stream; returns its name."""
        name = self.name("h")
        self.line(f"{name} = {text}")
        self.stream.append(name)
        return name

    @contextlib.contextmanager
    def branch(self, header):
        """Lines inside belong to a branch: what they name is not seen outside."""
        seen = list(self.stream)
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1
        self.stream = seen
