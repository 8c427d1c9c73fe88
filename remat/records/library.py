"""A folder of instances: for each graph its entry, the graph, and the evidence of each record in the standard forms.

NAME/instances.json           the entry (`remat-instances/1`, schema in docs/reference)
NAME/graph.json.gz            the graph
NAME/50.schedule.json.gz      the schedule that holds the record at 50 %
NAME/50.proof.json.gz         the proof of the largest certified bound at 50 %
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from attrs import field, frozen

from remat.errors import BadArgument, MalformedFile
from remat.ir import Graph, Schedule, dump, load, validate
from remat.ir.interchange import graph_to_json
from remat.ir.json_document import as_text, naming, parse_json, read_unzipped, write_whole
from remat.proof.check import Refused, Step
from remat.proof.document import Proof, refused
from remat.records.entry import NAME, SHARES, Entry, Instance, entry_from_json, entry_to_json
from remat.units import Bytes, KiB, format_bytes

ENTRY, GRAPH = "instances.json", "graph.json.gz"
MOST_EVIDENCE: Bytes = 256 * KiB
"""Of a file of evidence, zipped: the library is kept in a repository."""


@frozen(slots=False)
class Library:
    """The library in a folder.

    Attributes:
        folder: holds a folder for each graph.
    """

    folder: Path = field(converter=Path)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The graphs, sorted.

        Raises:
            BadArgument: R-LIBRARY, when the folder holds none.
        """
        names = tuple(sorted(path.parent.name for path in self.folder.glob(f"*/{ENTRY}")))
        if not names:
            fix = "give --library; it is docs/benchmarks/instances in a clone of the repository."
            raise BadArgument("R-LIBRARY", f"{self.folder} holds no instances.", fix=fix)
        return names

    def entry(self, name: str) -> Entry:
        """The entry of a graph.

        Raises:
            BadArgument: R-INSTANCE, when there is none; R-LIBRARY. MalformedFile: when it cannot be read.
        """
        if name not in self.names:
            near = [other for other in self.names if other.endswith(name) or name in other][:5]
            fix = f"did you mean {', '.join(near)}?" if near else "`remat records list` shows the names."
            raise BadArgument("R-INSTANCE", f"no graph of the library is called {name!r:.80}.", fix=fix)
        path = self.folder / name / ENTRY
        with naming(path):
            entry = entry_from_json(parse_json(as_text(read_unzipped(path))))
        if entry.name != name:
            what = f"it is the entry of {entry.name}."
            raise MalformedFile("R-EVIDENCE", what, where=str(path), fix="copy the folder again.")
        return entry

    def graph(self, entry: Entry) -> Graph:
        """The graph of an entry.

        Raises:
            MalformedFile: R-EVIDENCE, when it is another than the entry's; when it cannot be read.
        """
        path = self.folder / entry.name / GRAPH
        with naming(path):
            graph = load(path)
        if not isinstance(graph, Graph) or fingerprint(graph) != entry.digest:
            what = f"it is not the graph of the entry, whose fingerprint is {entry.digest}."
            fix = "copy it again, or make it again (`make graphs`) with the versions of its origin."
            raise MalformedFile("R-EVIDENCE", what, where=str(path), fix=fix)
        return graph

    def add(self, name: str, graph: Graph, origin: str) -> Entry:
        """Add a graph with its instances, about which nothing is known yet.

        Raises:
            BadArgument: R-INSTANCE, when the name is taken or is no name of a folder.
        """
        folder = self.folder / name
        if not NAME.fullmatch(name) or (folder / ENTRY).exists():
            fix = "give lower-case letters, digits, '.', '_' and '-', and a name that is free."
            raise BadArgument("R-INSTANCE", f"{name!r:.80} cannot be added.", fix=fix)
        peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
        entry = Entry(
            name=name, origin=origin, digest=fingerprint(graph), nodes=len(graph), time=graph.time, peak=peak,
            instances=tuple(Instance(graph=name, share=share, budget=peak * share // 100) for share in SHARES),
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        dump(graph, folder / GRAPH)
        self.write(entry)
        self.__dict__.pop("names", None)
        return entry

    def write(self, entry: Entry) -> None:
        """Write an entry."""
        text = json.dumps(entry_to_json(entry), indent=1, ensure_ascii=False)
        write_whole(self.folder / entry.name / ENTRY, f"{text}\n".encode())

    # -- evidence ------------------------------------------------------------------------------------------------------

    def evidence_path(self, instance: Instance, kind: str) -> Path:
        """Where the evidence of a record is; `kind` is `schedule` or `proof`."""
        return self.folder / instance.graph / f"{instance.share}.{kind}.json.gz"

    def write_evidence(self, instance: Instance, evidence: Schedule | Proof) -> None:
        """Write a schedule or a proof as the evidence of an instance.

        Raises:
            BadArgument: R-SIZE, when it is larger than `MOST_EVIDENCE`; what was there is kept.
        """
        path = self.evidence_path(instance, "proof" if isinstance(evidence, Proof) else "schedule")
        part = path.with_name(f".{path.name}")  # zipped under another name, to be measured
        try:
            if isinstance(evidence, Proof):
                evidence.dump(part)
            else:
                dump(evidence, part)
            size = part.stat().st_size
            if size > MOST_EVIDENCE:
                what = f"{path.name} has {format_bytes(size)}, the library takes {format_bytes(MOST_EVIDENCE)}."
                raise BadArgument("R-SIZE", what, fix="give a proof of fewer leaves (`remat prove --leaves`).")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def schedule(self, instance: Instance) -> Schedule:
        """The schedule that holds the record of an instance.

        Raises:
            MalformedFile: R-EVIDENCE, when the file holds something else; OSError when it is missing.
        """
        path = self.evidence_path(instance, "schedule")
        with naming(path):
            schedule = load(path)
        if not isinstance(schedule, Schedule):
            raise MalformedFile("R-EVIDENCE", "it holds no schedule.", where=str(path), fix="copy it again.")
        return schedule

    def proof(self, instance: Instance) -> Proof:
        """The proof of the certified bound of an instance; not yet checked."""
        return Proof.load(self.evidence_path(instance, "proof"))


def fingerprint(graph: Graph) -> str:
    """SHA-256 of what proofs are about: nodes and data in their order, without signatures and module paths.

    Raises:
        ProofRefused: T-GRAPH, of a graph with layers or with several options of a node.
    """
    try:
        return str(Step(graph_to_json(graph)).print)
    except Refused as refusal:
        raise refused(refusal) from None


__all__ = ["MOST_EVIDENCE", "Library", "fingerprint"]
