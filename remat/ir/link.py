"""The link between the device and the host: what a copy costs. What a schedule may do with it is rule S-LINK.

Reference: the two-resource model of POFO (Beaumont, Eyraud-Dubois, Shilova, 2021), section 3, with each copy made at once
and each direction a resource of its own. Semantics of copies: `docs/reference/rules.md`.
"""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen

from remat.errors import IllFormed
from remat.ir.checks import at_least
from remat.units import Bytes, Ns

_SECOND = 10**9
_at_least_1 = at_least(1, "bytes per second")


def _a_bandwidth(instance: Any, attribute: Attribute[Any], value: Any) -> None:
    if value is not None:
        _at_least_1(instance, attribute, value)


@frozen(kw_only=True)
class Link:
    """A link with one lane each way; a lane makes one copy at a time, in the order of the steps.

    Attributes:
        to_host, to_device: bandwidths [bytes per second]; None: unbounded.
        to_host_latency, to_device_latency: time a copy takes before its first byte [ns].
    """

    to_host: int | None = field(default=None, validator=_a_bandwidth)
    to_device: int | None = field(default=None, validator=_a_bandwidth)
    to_host_latency: Ns = field(default=0, validator=at_least(0, "ns"))
    to_device_latency: Ns = field(default=0, validator=at_least(0, "ns"))

    @classmethod
    def symmetric(cls, *, gb_per_s: int | float, latency: Ns = 0) -> Link:
        """A link that is as fast one way as the other; `gb_per_s` counts 10^9 bytes.

        Raises:
            IllFormed: G-RANGE, when the bandwidth is below one byte per second or not finite.
        """
        if isinstance(gb_per_s, bool) or not isinstance(gb_per_s, (int, float)) or not 1e-9 <= gb_per_s < 1e9:
            raise IllFormed("G-RANGE", f"Link: {gb_per_s!r} GB/s is not a bandwidth.", fix="give e.g. gb_per_s=12.")
        speed = round(gb_per_s * _SECOND)
        return cls(to_host=speed, to_device=speed, to_host_latency=latency, to_device_latency=latency)

    def offload_time(self, size: Bytes) -> Ns:
        """Time of a copy of `size` bytes to the host [ns]: the latency, and the bytes rounded up to a whole nanosecond."""
        return self.to_host_latency + _copy(size, self.to_host)

    def prefetch_time(self, size: Bytes) -> Ns:
        """Time of a copy of `size` bytes to the device [ns]."""
        return self.to_device_latency + _copy(size, self.to_device)


def _copy(size: Bytes, bandwidth: int | None) -> Ns:
    return 0 if bandwidth is None else -(-size * _SECOND // bandwidth)
