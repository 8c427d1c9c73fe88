"""A run sequence with copies as a schedule: drops, then offloads, then prefetches, then the next run."""

from __future__ import annotations

from collections import defaultdict

from remat.algorithms._arrays.graph_arrays import Flat, Ints, Longs, rows_of
from remat.algorithms._copies.copy_arrays import Runs, list_copies
from remat.ir import Drop, Graph, Offload, Prefetch, Run, Schedule
from remat.ir.step import Step


def schedule_with_copies(graph: Graph, flat: Flat, seq: Ints, mask: Longs, issue: Ints) -> Schedule:
    """The schedule of a sequence.

    Args:
        graph: the step.
        flat: its arrays.
        seq: the runs, by node.
        mask: per run, its reads that come by a copy.
        issue: per copy, in the order of the reads: the position before which its prefetch is issued.
    """
    copies = list_copies(flat, Runs(seq, mask, len(seq)))
    nodes, data = [node.name for node in graph.computes], [datum.name for datum in graph.data]
    prefetches: dict[int, list[str]] = defaultdict(list)
    offloads: dict[int, list[str]] = defaultdict(list)
    leaves: set[tuple[int, int]] = set()
    for datum, before, carries, at in zip(
        *(array.tolist() for array in (copies.datum, copies.before, copies.carries, issue)), strict=True
    ):
        prefetches[at].append(data[datum])
        leaves.add((before, datum))
        if carries:
            offloads[before].append(data[datum])
        else:
            leaves.discard((before, datum))
    steps: list[Step] = []
    dropped = _drops(flat, seq, mask)
    for i, v in enumerate(seq.tolist()):
        steps += map(Prefetch, prefetches[i])
        steps.append(Run(nodes[v]))
        steps += [Drop(data[d]) for d in dropped[i] if (i, d) not in leaves]
        steps += map(Offload, offloads[i])
    return Schedule(tuple(steps))


def _drops(flat: Flat, seq: Ints, mask: Longs) -> list[list[int]]:
    """The data, per position, that the next run does not find: those not read again before they are made, or fetched anew."""
    reads_of, writes_of = rows_of(flat.reads), rows_of(flat.writes)
    stays = [False] * len(flat.size)
    keep = flat.keep.tolist()
    dropped: list[list[int]] = []
    for v, bits in zip(reversed(seq.tolist()), reversed(mask.tolist()), strict=True):
        reads, makes = reads_of[v], writes_of[v]
        dropped.append([d for d in (*reads, *makes) if not stays[d] and not keep[d]])
        for d in makes:
            stays[d] = False
        for k, d in enumerate(reads):
            stays[d] = not bits >> k & 1
    dropped.reverse()
    return dropped
