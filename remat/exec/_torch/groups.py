"""Groups of processes under `torch.distributed`: who is in one, and the store that all of them reach."""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen

WORLD = "world"
"""All processes of `torch.distributed`, where it is initialized."""


@frozen(kw_only=True)
class Members:
    """The processes of a group, as one of them sees it.

    Attributes:
        rank: of this process in the group.
        size: number of processes.
        name: of the group, the same on all of them.
        store: that all of them reach.
        timeout: how long the group lets its processes wait for each other [s].
    """

    rank: int
    size: int
    name: str
    store: Any = field(repr=False)
    timeout: float

    def section(self, name: str) -> Any:
        """The store under keys that begin with a name."""
        return torch.distributed.distributed_c10d.PrefixStore(name, self.store)


def is_group(value: Any) -> bool:
    """Whether a value names a group: a process group, or `WORLD`."""
    distributed = torch.distributed
    return value == WORLD if isinstance(value, str) else distributed.is_available() and _is_process_group(value)


def _is_process_group(value: Any) -> bool:
    return isinstance(value, torch.distributed.ProcessGroup)


def is_running() -> bool:
    """Whether there are groups now."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def members_of(group: Any) -> Members | None:
    """The processes of a group; None: this process is alone, or its peers are made up (the `fake` backend).

    Args:
        group: a process group, `WORLD`, or None for nobody else.
    """
    if group is None or not is_running():
        return None
    from torch.distributed import distributed_c10d

    if group == WORLD:
        group = torch.distributed.group.WORLD
    size = torch.distributed.get_world_size(group)
    if size < 2 or torch.distributed.get_backend(group) == "fake":
        return None
    store: Any = distributed_c10d._get_default_store()
    return Members(
        rank=torch.distributed.get_rank(group),
        size=size,
        name=str(group.group_name),
        store=store,
        timeout=store.timeout.total_seconds(),
    )


__all__ = ["WORLD", "Members", "is_group", "is_running", "members_of"]
