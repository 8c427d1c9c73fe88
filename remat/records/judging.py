"""Submissions: the validator replays a schedule, the checker reads a proof, and a record is only raised by what they find."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import evolve, frozen

from remat.errors import BadArgument, MalformedFile, ProofRefused, RematError, UnsoundBound
from remat.ir import Cost, Graph, Schedule, validate
from remat.proof.document import Proof
from remat.records.entry import BoundRecord, Entry, Instance, PlanRecord, author
from remat.records.library import Library
from remat.units import Ns


@frozen(kw_only=True)
class Judgement:
    """What a submission is worth at one instance.

    Attributes:
        instance: as it was before. kind: `schedule` or `proof`.
        value: the replayed time or the proved bound [ns]; infinite: it is proved that no schedule exists.
        previous: the record before it; None: there was none. record: whether the submission is better.
    """

    instance: Instance
    kind: str
    value: float
    previous: float | None
    record: bool


@frozen(kw_only=True)
class Submission:
    """A schedule or a proof, checked, with what it is worth at each instance that it is for.

    Attributes:
        entry: before it. evidence: what was submitted. cost: of the replay of a schedule.
        judgements: one for each instance, by falling budget.
    """

    entry: Entry
    evidence: Schedule | Proof
    cost: Cost | None
    judgements: tuple[Judgement, ...]

    @property
    def records(self) -> tuple[Judgement, ...]:
        """The judgements that are records."""
        return tuple(judgement for judgement in self.judgements if judgement.record)


def judge(library: Library, name: str, share: int | None, evidence: Schedule | Proof) -> Submission:
    """Check a schedule or a proof and compare it with the records.

    Args:
        library: of the instances.
        name: of the graph.
        share: of the instance; None: every instance of the graph that it holds for.
        evidence: the submission; nothing in it is trusted.

    Raises:
        InvalidSchedule: by the rule that it breaks; S-MEM when it exceeds the budget.
        ProofRefused: T-…; R-CLASS, of a proof that does not hold for every schedule; T-BUDGET, of one for less than the budget.
        UnsoundBound: A-BOUND, when a schedule and a proof contradict each other.
        BadArgument: R-INSTANCE. MalformedFile: when the library cannot be read.
    """
    entry = library.entry(name)
    asked = entry.instances if share is None else (entry.instance(share),)
    graph = library.graph(entry)
    if isinstance(evidence, Schedule):
        cost = validate(graph, evidence, asked[0].budget)
        judgements = [_of_time(instance, cost.time) for instance in asked if instance.budget >= cost.peak]
        return Submission(entry=entry, evidence=evidence, cost=cost, judgements=tuple(judgements))
    bound, budget = _proved(graph, evidence)
    if budget < asked[-1].budget:
        what = f"it holds up to {budget} B, not for {asked[-1].budget} B of {asked[-1].name}."
        raise ProofRefused("T-BUDGET", what, where="proof.budget", fix="prove the bound for the larger budget.")
    judgements = [_of_bound(instance, bound) for instance in asked if instance.budget <= budget]
    return Submission(entry=entry, evidence=evidence, cost=None, judgements=tuple(judgements))


def _proved(graph: Graph, proof: Proof) -> tuple[float, int]:
    """The bound that a proof proves for every schedule, infinite where none exists, and up to which budget."""
    verdict = proof.check(graph)
    if verdict.assumes:
        what = f"it holds for schedules with {verdict.assumes} only."
        raise ProofRefused("R-CLASS", what, where="proof.theorem", fix="submit a proof for every schedule.")
    return math.inf if verdict.bound is None else verdict.bound, verdict.budget


def _of_time(instance: Instance, time: Ns) -> Judgement:
    if instance.bound is not None and instance.bound.value > time:
        raise _contradiction(instance, time, instance.bound.value)
    previous = None if instance.plan is None else instance.plan.time
    better = previous is None or time < previous
    return Judgement(instance=instance, kind="schedule", value=time, previous=previous, record=better)


def _of_bound(instance: Instance, bound: float) -> Judgement:
    if instance.plan is not None and bound > instance.plan.time:
        raise _contradiction(instance, instance.plan.time, bound)
    previous = None if instance.bound is None else instance.bound.value
    better = previous is None or bound > previous
    return Judgement(instance=instance, kind="proof", value=bound, previous=previous, record=better)


def _contradiction(instance: Instance, time: Ns, bound: float) -> UnsoundBound:
    what = f"{instance.name}: a schedule of {time} ns is valid and a bound of {bound:.0f} ns is proved."
    return UnsoundBound("A-BOUND", what, fix="report it with both files: the validator or the checker has a bug.")


# -- entering ----------------------------------------------------------------------------------------------------------


def enter(library: Library, submission: Submission, by: str, date: str) -> Entry:
    """Write the records of a submission and its evidence into the library.

    A claim that a schedule refutes, or that a proof reaches, is taken out.

    Args:
        library: of the submission.
        submission: from `judge`, which has checked it.
        by: who found it.
        date: when, as `2026-11-22`.

    Raises:
        BadArgument: R-AUTHOR; R-SIZE.
    """
    author(by)
    entry = submission.entry
    for judgement in submission.records:
        instance = judgement.instance
        if submission.cost is not None:
            cost = submission.cost
            instance = evolve(instance, plan=PlanRecord(time=cost.time, peak=cost.peak, by=by, date=date))
        else:
            bound = None if math.isinf(judgement.value) else int(judgement.value)
            instance = evolve(instance, bound=BoundRecord(bound=bound, by=by, date=date))
        entry = entry.replaced(_without_idle_claim(instance))
        library.write_evidence(instance, submission.evidence)
        library.write(entry)
    return entry


def claim(library: Library, name: str, share: int, record: BoundRecord) -> Entry:
    """Note a bound without a proof beside the records; it is kept where it is above the certified bound and earlier claims.

    Raises:
        BadArgument: R-INSTANCE; R-CLAIM, when the schedule on record is faster.
    """
    entry = library.entry(name)
    instance = entry.instance(share)
    if instance.plan is not None and record.value > instance.plan.time:
        what = f"{instance.name}: the schedule of {instance.plan.time} ns on record refutes it."
        raise BadArgument("R-CLAIM", what, fix="look for the error in what claims it.")
    if instance.claim is None or record.value > instance.claim.value:
        instance = _without_idle_claim(evolve(instance, claim=record))
        entry = entry.replaced(instance)
        library.write(entry)
    return entry


def _without_idle_claim(instance: Instance) -> Instance:
    """The instance without a claim that the certified bound reaches or the schedule refutes."""
    claimed = instance.claim
    if claimed is None:
        return instance
    reached = instance.bound is not None and instance.bound.value >= claimed.value
    refuted = instance.plan is not None and instance.plan.time < claimed.value
    return evolve(instance, claim=None) if reached or refuted else instance


# -- the whole library -------------------------------------------------------------------------------------------------


def faults(library: Library, name: str) -> Iterator[str]:
    """What is wrong with an entry: its graph, each schedule replayed, each proof checked again; nothing where all holds."""
    try:
        entry = library.entry(name)
        graph = library.graph(entry)
    except (RematError, OSError) as error:
        yield f"{name}: {error}"
        return
    peak = validate(graph, Schedule.from_runs(graph, range(len(graph)))).peak
    if (entry.nodes, entry.time, entry.peak) != (len(graph), graph.time, peak):
        numbers = f"{len(graph)} nodes, {graph.time} ns, peak {peak} B"
        yield f"{name}: its graph has {numbers}; the entry says {entry.nodes}, {entry.time}, {entry.peak}"
    for instance in entry.instances:
        if instance.budget != peak * instance.share // 100:
            yield f"{instance.name}: {instance.share} % of the peak is {peak * instance.share // 100} B, not {instance.budget} B"
        try:
            _verify(library, graph, instance)
        except (RematError, OSError) as error:
            yield f"{instance.name}: {error}"


def _verify(library: Library, graph: Graph, instance: Instance) -> None:
    """Check the evidence of an instance, and that it is what the records say."""
    time, bound = math.inf, 0.0
    if instance.plan is not None:
        cost = validate(graph, library.schedule(instance), instance.budget)
        time = cost.time
        if (cost.time, cost.peak) != (instance.plan.time, instance.plan.peak):
            what = f"it takes {cost.time} ns and {cost.peak} B, the record {instance.plan.time} ns and {instance.plan.peak} B."
            raise _mismatch(library, instance, "schedule", what)
    if instance.bound is not None:
        bound, budget = _proved(graph, library.proof(instance))
        if bound != instance.bound.value or budget < instance.budget:
            what = f"it proves {bound:.0f} ns up to {budget} B, the record {instance.bound.value:.0f} ns."
            raise _mismatch(library, instance, "proof", what)
    if bound > time:
        raise _contradiction(instance, int(time), bound)


def _mismatch(library: Library, instance: Instance, kind: str, what: str) -> MalformedFile:
    where = str(library.evidence_path(instance, kind))
    return MalformedFile("R-EVIDENCE", what, where=where, fix="copy it again, or submit it again.")


__all__ = ["Judgement", "Submission", "claim", "enter", "faults", "judge"]
