"""`Proof`: a proof of a lower bound as a JSON document, read, written and checked."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import Any

from attrs import field, frozen

from remat.errors import MalformedFile, ProofRefused, shown
from remat.ir import Graph, Link
from remat.ir.interchange import graph_to_json
from remat.ir.json_document import read_unzipped, write_whole
from remat.proof.check import HEAD, RULES, THEOREMS, Refused, Verdict, check, plain, read_text
from remat.proof.vipr import vipr_texts
from remat.units import Bytes, Ns

FORMAT = "remat-proof/1"
"""Of the files of proofs."""


@frozen(slots=False)
class Proof:
    """A proof that no schedule of a graph within a budget is faster than a bound, or that there is none.

    Nothing in it is trusted before `check`; the format is documented in `docs/reference/proofs.md`.

    Attributes:
        document: the JSON document (`remat-proof/1`); not to be changed.
    """

    document: dict[str, Any] = field(repr=False)

    @property
    def theorem(self) -> str:
        """The theorem it instantiates: `floor`, `instants`, `captured` or `link`."""
        return str(self.document["theorem"])

    @property
    def link(self) -> Link | None:
        """The link of the schedules that it bounds; None: those without copies."""
        return None if self.theorem != "link" else _link(*self.document["link"])

    @property
    def budget(self) -> Bytes:
        """The proof is valid for this budget and all smaller ones [bytes]."""
        return int(self.document["budget"])

    @property
    def bound(self) -> Ns | None:
        """The claimed bound: no schedule takes less [ns]; None: there is no schedule."""
        bound = self.document["bound"]
        return None if bound is None else int(bound)

    @property
    def leaves(self) -> int:
        """Leaves of its trees; of a floor, sets of its family."""
        if self.theorem == "floor":
            return len(self.document["family"])
        return sum(entry[0] != "branch" for tree in self.document["trees"] for entry in tree["tree"])

    @cached_property
    def text(self) -> str:
        """The JSON text."""
        return json.dumps(self.document, separators=(",", ":"))

    def check(self, graph: Graph) -> Verdict:
        """The statement that it proves of a graph, by the independent checker.

        Raises:
            ProofRefused: with the place, when it does not prove its claim.
        """
        return self.check_step(graph_to_json(graph))

    def check_step(self, step: Any) -> Verdict:
        """The same of a graph in its JSON form, or as the checker has read it before (`remat.proof.check.Step`)."""
        try:
            _require_form(self.document)
            return check(step, self.document)
        except Refused as refusal:
            raise refused(refusal) from None

    def vipr(self, graph: Graph) -> list[str]:
        """Its trees as texts in VIPR 1.0, one for each order of the instants; the proof is checked first.

        A text derives the bound, less the time of the nodes that must run, from rows; that the rows hold for every schedule is
        not in it.

        Raises:
            ProofRefused: T-VIPR, of a floor, with a link or without instants; or it does not prove its claim.
        """
        self.check(graph)
        return vipr_texts(graph_to_json(graph), self.document)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write it atomically; gzipped when the name ends in `.gz`."""
        write_whole(path, self.text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Proof:
        """Read a proof.

        Raises:
            ProofRefused: T-JSON, when the file is no whole JSON of objects, lists, texts and whole numbers; OSError when it
                cannot be read.
        """
        try:
            document = read_text(read_unzipped(path), f"file {path}")
            plain(document, "proof")
        except MalformedFile as error:
            raise refused(Refused(error.what.partition(": ")[2], f"file {path}")) from None
        except Refused as refusal:
            raise refused(refusal) from None
        return cls(document)


def _require_form(document: Any) -> None:
    """Refuse what is not in the form of a proof, by the name of what is missing."""
    form = document.get("format") if isinstance(document, dict) else None
    if form != FORMAT:
        raise Refused(f"format is {form!r:.80}, and that of a proof is {FORMAT!r}.", "proof")
    _require_keys(document, HEAD)
    theorem = document["theorem"]
    if theorem not in [*THEOREMS]:
        raise Refused(f"theorem is {shown(theorem)}, and there are {', '.join(THEOREMS)}.", "proof")
    _require_keys(document, THEOREMS[theorem])


def _require_keys(document: dict[str, Any], keys: set[str]) -> None:
    missing = sorted(keys - document.keys())
    if missing:
        raise Refused(f"has no {', '.join(missing)}.", "proof")


def link_document(link: Link) -> list[list[int]]:
    """The form of a link in a proof: bandwidth (0: unbounded) and latency of either lane, the one to the host first."""
    return [[link.to_host or 0, link.to_host_latency], [link.to_device or 0, link.to_device_latency]]


def _link(to_host: list[int], to_device: list[int]) -> Link:
    return Link(
        to_host=to_host[0] or None,
        to_device=to_device[0] or None,
        to_host_latency=to_host[1],
        to_device_latency=to_device[1],
    )


def refused(refusal: Refused) -> ProofRefused:
    """The checker's refusal as an error of this library."""
    fix = "ask for a proof of this graph and budget again (`remat prove`)."
    what = f"{refusal.what.removesuffix('.')}."  # the checker's texts are no sentences
    return ProofRefused(refusal.rule, what, where=refusal.where, fix=fix)


def head(
    theorem: str, graph: str, budget: Bytes, bound: Ns | None, link: list[list[int]] | None = None
) -> dict[str, Any]:
    """What every proof begins with; `graph` is the fingerprint. With a link the theorem is `link`."""
    return {
        **({} if link is None else {"link": link}),
        "format": FORMAT,
        "theorem": theorem if link is None else "link",
        "rules": RULES,
        "graph": graph,
        "budget": budget,
        "bound": bound,
    }
