"""Kept data on arrays: which stay from the run that makes them, and what runs need besides."""

from __future__ import annotations

import numpy as np

from remat.algorithms._arrays.graph_arrays import Flags, Flat, Longs, entries, lengths


def permanent(flat: Flat) -> Flags:
    """The kept data with one writer: they are resident from its first run to the end (a sum grows in between)."""
    kept: Flags = flat.keep & (flat.contributions == 1)
    return kept


def kept_by_node(flat: Flat) -> Longs:
    """Bytes that each node makes and that stay from its first run."""
    staying = permanent(flat)
    kept = np.zeros(flat.time.size, np.int64)
    np.add.at(kept, flat.producer[staying], flat.size[staying])
    return kept


def read_bytes(flat: Flat, size: Longs) -> Longs:
    """Bytes that each node reads, with these sizes of the data."""
    total = np.zeros(flat.time.size, np.int64)
    np.add.at(total, np.repeat(np.arange(flat.time.size), lengths(flat.reads)), size[entries(flat.reads)])
    return total


def working_sets(flat: Flat) -> Longs:
    """Bytes that a run of each node needs besides kept data: reads, outputs, workspace."""
    return flat.charge + read_bytes(flat, np.where(permanent(flat), 0, flat.size))
