"""Training graphs of convolutional networks from layer shapes alone: flops, bytes, and the times of a named device.

No network is built or run. What is saved for the backward follows PyTorch: a convolution its input, a batch norm its input, an
in-place rectifier its output, a maximum pool its indices. Times: a launch, and the larger of flops and bytes over the
device's rates.
"""

from __future__ import annotations

from attrs import define, field, frozen

from remat.ir import Graph, GraphBuilder, Kind


@frozen(kw_only=True)
class Device:
    """Rates of a device: flops per second reached by convolutions, bytes per second, launch of a kernel [ns]."""

    name: str
    flops: float
    bandwidth: float
    launch: int

    def time(self, flops: float, size: float) -> int:
        """Time of a kernel [ns]."""
        return self.launch + round(1e9 * max(flops / self.flops, size / self.bandwidth))


V100 = Device(name="V100", flops=14e12, bandwidth=900e9, launch=5000)
"""Near the data sheet: no device is faster."""

BUSY_V100 = Device(name="V100 at 60 % of its rates", flops=8.4e12, bandwidth=540e9, launch=5000)
"""What networks reach on it in practice is nearer to this: computations are slower, so that copies hide better."""


@frozen
class Tensor:
    """A batch of images."""

    name: str
    channels: int
    height: int
    width: int


@define
class Op:
    """A forward operation and what its backward needs and costs."""

    name: str
    reads: tuple[str, ...]
    write: str
    time: int
    backward_time: int
    saved: tuple[str, ...]
    indices: int = 0
    params: int = 0
    skip: str = ""


@define
class Net:
    """Collects operations; `graph` differentiates them."""

    name: str
    batch: int
    device: Device = V100
    ops: list[Op] = field(factory=list)
    sizes: dict[str, int] = field(factory=dict)

    def image(self, size: int) -> Tensor:
        """The input: it lives outside the budget."""
        return self._tensor("image", 3, size, size)

    def conv(
        self, x: Tensor, out: int, kernel: int | tuple[int, int], stride: int = 1, pad: int | tuple[int, int] = 0
    ) -> Tensor:
        """A convolution without bias."""
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        ph, pw = (pad, pad) if isinstance(pad, int) else pad
        y = self._made(out, (x.height + 2 * ph - kh) // stride + 1, (x.width + 2 * pw - kw) // stride + 1)
        weights = 4 * out * x.channels * kh * kw
        flops = 2.0 * self.batch * y.height * y.width * out * x.channels * kh * kw
        moved = self._size(x) + self._size(y) + weights
        times = 1 if x.name == "image" else 2
        self._op(
            "conv",
            (x,),
            y,
            self.device.time(flops, moved),
            times * self.device.time(flops, moved),
            (x,),
            params=weights,
        )
        return y

    def norm(self, x: Tensor, *, relu: bool = True) -> Tensor:
        """A batch norm, with an in-place rectifier behind it."""
        y = self._made(x.channels, x.height, x.width)
        size = self._size(x)
        kernels = 2 if relu else 1
        forward = self.device.time(0, 3 * size) + (kernels - 1) * self.device.time(0, 2 * size)
        backward = self.device.time(0, 5 * size) + (kernels - 1) * self.device.time(0, 3 * size)
        self._op("norm", (x,), y, forward, backward, (x, y) if relu else (x,), params=8 * x.channels)
        return y

    def add(self, x: Tensor, skip: Tensor) -> Tensor:
        """A sum with an in-place rectifier; the gradient of the sum is that of the branch, the skip gets its share of it."""
        y = self._made(x.channels, x.height, x.width)
        size = self._size(x)
        time = self.device.time(0, 3 * size) + self.device.time(0, 2 * size)
        self._op("add", (x, skip), y, time, self.device.time(0, 3 * size), (y,), skip=skip.name)
        return y

    def pool(self, x: Tensor, kernel: int, stride: int, pad: int = 0, *, largest: bool = True) -> Tensor:
        """A maximum or average pool."""
        y = self._made(
            x.channels, (x.height + 2 * pad - kernel) // stride + 1, (x.width + 2 * pad - kernel) // stride + 1
        )
        time = self.device.time(0, self._size(x) + self._size(y))
        indices = 2 * self._size(y) if largest else 0
        self._op("pool", (x,), y, time, time, (x,) if largest else (), indices=indices)
        return y

    def cat(self, parts: list[Tensor]) -> Tensor:
        """Channels side by side."""
        y = self._made(sum(part.channels for part in parts), parts[0].height, parts[0].width)
        time = self.device.time(0, 2 * self._size(y))
        self._op("cat", tuple(parts), y, time, time, ())
        return y

    def head(self, x: Tensor, classes: int = 1000) -> Tensor:
        """The mean over the image and a linear layer."""
        mean = self._made(x.channels, 1, 1)
        time = self.device.time(0, self._size(x))
        self._op("mean", (x,), mean, time, time, ())
        return self.conv(mean, classes, 1)

    def graph(self, last: Tensor) -> Graph:
        """The training graph, with a loss on `last`."""
        b = GraphBuilder(self.name)
        b.data("image", 0, Kind.INPUT)
        for op in self.ops:
            b.data(op.write, self.sizes[op.write])
            writes = [op.write]
            if op.indices:
                b.data(f"{op.name}.indices", op.indices)
                writes.append(f"{op.name}.indices")
            b.forward(op.name, reads=op.reads, writes=writes, time=op.time)
        b.data("tangent", 4, Kind.TANGENT)
        gradient = {last.name: f"grad.{last.name}"}
        b.data(gradient[last.name], self.sizes[last.name], Kind.GRADIENT)
        time = self.device.time(0, 4 * self.sizes[last.name])
        b.loss("loss", reads=[last.name], writes=["tangent", gradient[last.name]], time=time)
        for op in reversed(self.ops):
            self._differentiate(b, op, gradient)
        return b.build()

    def _differentiate(self, b: GraphBuilder, op: Op, gradient: dict[str, str]) -> None:
        incoming = gradient[op.write]
        saved = list(op.saved) + ([f"{op.name}.indices"] if op.indices else [])
        if op.skip:
            inner = f"inner.{op.write}"
            b.data(inner, self.sizes[op.write], Kind.GRADIENT)
            b.backward(
                f"{op.name}.backward", reads=[incoming, *saved], writes=[inner], time=op.backward_time, twin=op.name
            )
            gradient[op.reads[0]] = inner
            share = self._gradient(b, op.skip, gradient)
            time = self.device.time(0, 3 * self.sizes[op.write])
            b.backward(f"{op.name}.skip", reads=[inner], writes=[share], time=time, twin=op.name)
            return
        writes = [self._gradient(b, name, gradient) for name in op.reads if name != "image"]
        if op.params:
            b.data(f"{op.name}.weight_grad", op.params, Kind.PARAM_GRAD)
            writes.append(f"{op.name}.weight_grad")
        b.backward(f"{op.name}.backward", reads=[incoming, *saved], writes=writes, time=op.backward_time, twin=op.name)

    def _gradient(self, b: GraphBuilder, name: str, gradient: dict[str, str]) -> str:
        if name not in gradient:
            gradient[name] = f"grad.{name}"
            b.data(gradient[name], self.sizes[name], Kind.GRADIENT)
        return gradient[name]

    def _op(
        self,
        kind: str,
        reads: tuple[Tensor, ...],
        y: Tensor,
        time: int,
        back: int,
        saved: tuple[Tensor, ...],
        **more: object,
    ) -> None:
        names = tuple(x.name for x in saved if x.name != "image")
        op = Op(f"{kind}.{len(self.ops)}", tuple(x.name for x in reads), y.name, time, back, names, **more)  # type: ignore[arg-type]
        self.ops.append(op)

    def _made(self, channels: int, height: int, width: int) -> Tensor:
        return self._tensor(f"x{len(self.ops)}", channels, height, width)

    def _tensor(self, name: str, channels: int, height: int, width: int) -> Tensor:
        self.sizes[name] = 4 * self.batch * channels * height * width
        return Tensor(name, channels, height, width)

    def _size(self, x: Tensor) -> int:
        return self.sizes[x.name]


def resnet101(batch: int = 16, size: int = 500, device: Device = V100) -> Graph:
    """ResNet-101: bottlenecks 3, 4, 23, 3."""
    net = Net("resnet101", batch, device)
    x = net.norm(net.conv(net.image(size), 64, 7, 2, 3))
    x = net.pool(x, 3, 2, 1)
    for stage, count in enumerate((3, 4, 23, 3)):
        width = 64 << stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            y = net.norm(net.conv(x, width, 1))
            y = net.norm(net.conv(y, width, 3, stride, 1))
            y = net.norm(net.conv(y, 4 * width, 1), relu=False)
            skip = x if i else net.norm(net.conv(x, 4 * width, 1, stride), relu=False)
            x = net.add(y, skip)
    return net.graph(net.head(x))


def densenet121(batch: int = 16, size: int = 500, device: Device = V100) -> Graph:
    """DenseNet-121, each dense layer writing its input and its 32 new channels as one tensor: a chain, as in Rotor's version."""
    net = Net("densenet121", batch, device)
    x = net.pool(net.norm(net.conv(net.image(size), 64, 7, 2, 3)), 3, 2, 1)
    for block, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            y = net.conv(net.norm(x), 128, 1)
            x = net.cat([x, net.conv(net.norm(y), 32, 3, 1, 1)])
        x = net.norm(x)
        if block < 3:
            x = net.pool(net.conv(x, x.channels // 2, 1), 2, 2, largest=False)
    return net.graph(net.head(x))


def inception3(batch: int = 16, size: int = 500, device: Device = V100) -> Graph:
    """Inception v3 without its auxiliary head."""
    net = Net("inception3", batch, device)

    def unit(
        x: Tensor, out: int, kernel: int | tuple[int, int], stride: int = 1, pad: int | tuple[int, int] = 0
    ) -> Tensor:
        return net.norm(net.conv(x, out, kernel, stride, pad))

    x = unit(unit(unit(net.image(size), 32, 3, 2), 32, 3), 64, 3, 1, 1)
    x = net.pool(x, 3, 2)
    x = net.pool(unit(unit(x, 80, 1), 192, 3), 3, 2)
    for features in (32, 64, 64):
        a = unit(x, 64, 1)
        b = unit(unit(x, 48, 1), 64, 5, 1, 2)
        c = unit(unit(unit(x, 64, 1), 96, 3, 1, 1), 96, 3, 1, 1)
        d = unit(net.pool(x, 3, 1, 1, largest=False), features, 1)
        x = net.cat([a, b, c, d])
    x = net.cat([unit(x, 384, 3, 2), unit(unit(unit(x, 64, 1), 96, 3, 1, 1), 96, 3, 2), net.pool(x, 3, 2)])
    for middle in (128, 160, 160, 192):
        a = unit(x, 192, 1)
        b = unit(unit(unit(x, middle, 1), middle, (1, 7), 1, (0, 3)), 192, (7, 1), 1, (3, 0))
        c = unit(unit(unit(x, middle, 1), middle, (7, 1), 1, (3, 0)), middle, (1, 7), 1, (0, 3))
        c = unit(unit(c, middle, (7, 1), 1, (3, 0)), 192, (1, 7), 1, (0, 3))
        d = unit(net.pool(x, 3, 1, 1, largest=False), 192, 1)
        x = net.cat([a, b, c, d])
    a = unit(unit(x, 192, 1), 320, 3, 2)
    b = unit(unit(unit(unit(x, 192, 1), 192, (1, 7), 1, (0, 3)), 192, (7, 1), 1, (3, 0)), 192, 3, 2)
    x = net.cat([a, b, net.pool(x, 3, 2)])
    for _ in range(2):
        a = unit(x, 320, 1)
        b = unit(x, 384, 1)
        b = net.cat([unit(b, 384, (1, 3), 1, (0, 1)), unit(b, 384, (3, 1), 1, (1, 0))])
        c = unit(unit(x, 448, 1), 384, 3, 1, 1)
        c = net.cat([unit(c, 384, (1, 3), 1, (0, 1)), unit(c, 384, (3, 1), 1, (1, 0))])
        d = unit(net.pool(x, 3, 1, 1, largest=False), 192, 1)
        x = net.cat([a, b, c, d])
    return net.graph(net.head(x))


NETWORKS = {"resnet101": resnet101, "densenet121": densenet121, "inception3": inception3}
