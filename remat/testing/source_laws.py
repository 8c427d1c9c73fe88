"""The laws of an option source, and `check_source`, which tests all of them on blocks of small flat graphs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from remat.algorithms._core.options import OptionSource, dominates
from remat.errors import IllFormed, InvalidSchedule
from remat.ir import (
    Cluster,
    Graph,
    LayerOption,
    Phase,
    Run,
    Schedule,
    clusters,
    condense,
    expand,
    option_of,
    part,
    print_text,
    validate,
)
from remat.settings import instance
from remat.testing.clock import RecordingClock, memory_clock
from remat.testing.families import branching, chain, legal_flat
from remat.testing.guard import Overrun, patient
from remat.testing.guarded import GuardedTrial
from remat.testing.random_schedules import random_schedule
from remat.testing.renaming import other_names, renamed
from remat.testing.report import LawBroken, Report, Say, Tally, check_arguments
from remat.testing.trial import check_repr
from remat.testing.trying import Examples, try_examples

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SOURCE_LAWS = {
    "L-RAISE": "no exception is raised for a block",
    "L-TIME": "it ends within seconds on a small block, and soon after its clock expires",
    "L-THREAD": "no thread or process is left running",
    "L-GLOBAL": "global state of the process is not changed: generators of random numbers, environment, limits",
    "L-PURE": "the block is not changed",
    "L-INT": "`options` returns a tuple of layer options",
    "L-OPTION": "an option is a valid schedule of the block in two halves, and its numbers are at least those of the replay",
    "L-LEAN": "no option dominates another, and they are sorted by time",
    "L-EXPAND": "a schedule of the layer expands to one of the same time and a peak no larger",
    "L-REPEAT": "the same block and seed give the same options, whatever the state of the global generators",
    "L-NAMES": "names do not matter: with others, sorted alike or in reverse, the options are alike; nor does the order of sets",
    "L-STOP": "after the clock has expired, options are still valid",
    "L-INTERRUPT": "an interruption is let through, or stops the clock; it is not swallowed",
    "L-REPR": "`repr` rebuilds the source",
}
_FAMILIES: Final = (chain, branching, legal_flat, chain, branching)


def check_source(
    source: OptionSource,
    *,
    graphs: SearchStrategy[Graph] | None = None,
    exclude: Mapping[str, str] | None = None,
    words: Mapping[str, Any] | None = None,
    examples: int = 40,
    shrink: bool = True,
    say: Say | None = None,
) -> Report:
    """Test every law of an option source on blocks of small random flat graphs; arguments as for `check_solver`.

    Args:
        source: the source under check.
        graphs: a hypothesis strategy of flat graphs, of which it gets blocks; None: chains, branches and others.
        exclude: laws to leave out, each with a reason.
        words: values of the names in its repr that are in no registry.
        examples: number of blocks.
        shrink: look for a smaller example of a broken law.
        say: called with the text of the report; None: print it.

    Raises:
        LawBroken: with the law and the graph; `L-NONE` if no block got an option.
    """
    check_arguments("check_source", source, instance(OptionSource, "Ends()"), exclude, examples, graphs)
    tally = Tally(source, SOURCE_LAWS, exclude)
    check_repr(source, tally, words)
    offered = 0

    def judge(graph: Graph, number: int) -> None:
        nonlocal offered
        cluster = block_of(graph, number)
        if cluster is not None:
            offered += _Trial(source, graph, cluster, number, tally).run()

    try_examples(judge, Examples(graphs=graphs, count=examples, shrink=shrink, families=_FAMILIES), tally)
    if not offered:
        what = f"{tally.subject} offered no option for any block: nothing was checked. Give graphs=… for which it has options."
        raise LawBroken("L-NONE", what)
    return tally.report(say)


def block_of(graph: Graph, number: int) -> Cluster | None:
    """A cluster of consecutive forward nodes that can be condensed and has a backward part; None if none was found."""
    random = Random(number)
    forward = [node.name for node in graph.computes if node.phase is Phase.FORWARD]
    if not graph.flat or not forward:
        return None
    for _ in range(6):
        low = random.randrange(len(forward))
        names = forward[low : random.randint(low + 1, min(len(forward), low + 4))]
        try:
            (cluster,) = clusters(graph, {"block": names})
            condense(graph, (cluster,))
        except IllFormed:
            continue
        if cluster.backward:
            return cluster
    return None


class _Trial(GuardedTrial):
    """One block tested under all laws."""

    part: Any

    def __init__(self, source: OptionSource, graph: Graph, cluster: Cluster, number: int, tally: Tally) -> None:
        block = part(graph, cluster)
        example = f"{print_text(graph)}\n# the block of {', '.join(cluster.nodes)}:\n{print_text(block)}"
        super().__init__(source, block, example, SOURCE_LAWS, tally)  # type: ignore[arg-type]
        self.source, self.flat, self.cluster, self.number = source, graph, cluster, number

    def run(self) -> int:
        """All laws; the number of options."""
        self.tally.examples += 1
        pristine, clock = copy.deepcopy(self.graph), RecordingClock()
        options = self.ask(clock)
        if self.tally.tries("L-PURE"):
            self.expect("L-PURE", self.graph == pristine, "the block has changed.")
        self.valid(options)
        if self.tally.tries("L-LEAN"):
            self.lean(options)
        if options and self.tally.tries("L-EXPAND"):
            self.expands(options)
        self.repeats(options)
        if self.tally.tries("L-STOP"):
            looks = clock.ticks.looks
            self.valid(self.ask(RecordingClock(Random(self.number).choice((0, 1, looks // 2)))), "L-STOP")
        asked = memory_clock()
        self.interrupted(
            "`options`", self.number, lambda: self.source.options(self.graph, clock=asked), lambda: asked.stopped
        )
        return len(options)

    def ask(self, clock: RecordingClock) -> tuple[LayerOption, ...]:
        """The options; tests L-INT, and L-TIME after the clock has expired."""

        def question() -> Any:
            try:
                with patient(lambda: clock.ticks.over_since):
                    return self.source.options(self.graph, clock=clock, seed=self.number)
            except Overrun:
                raise self.broken("L-TIME", "`options` did not end within seconds.") from None

        options = self.guarded("`options`", question)
        if not isinstance(options, tuple) or not all(isinstance(option, LayerOption) for option in options):
            raise self.broken("L-INT", f"`options` returns {options!r:.80}, not a tuple of layer options.")
        return options

    def valid(self, options: tuple[LayerOption, ...], law: str = "L-OPTION") -> None:
        """L-OPTION, or L-STOP."""
        if not self.tally.tries(law):
            return
        loss = Run(self.graph.computes[self.graph.loss].name)
        for option in options:
            halves = [step for step in (*option.forward_steps, loss, *option.backward_steps) if isinstance(step, Run)]
            self.expect(law, bool(option.forward_steps), f"{_described(option)} has no sub-schedule to expand it by.")
            try:
                true = option_of(self.graph, Schedule.from_runs(self.graph, halves))
            except (InvalidSchedule, IllFormed) as error:
                raise self.broken(law, f"the schedule of {_described(option)}: {error}") from error
            same = (option.forward, option.backward) == (true.forward, true.backward)
            self.expect(
                law, same, f"{_described(option)}, and its schedule takes {true.forward} and {true.backward} ns."
            )
            fine = all(getattr(option, name) >= getattr(true, name) for name in _MEMORY)
            fine = fine and set(option.backward_reads) >= set(true.backward_reads)
            self.expect(law, fine, f"{_described(option)}, and the replay says {_described(true)}.")
            profiles = (option.forward_profile, option.backward_profile)
            exact = profiles in (((), ()), (true.forward_profile, true.backward_profile))
            self.expect(law, exact, f"the moments of {_described(option)} are {profiles}, not those of its schedule.")

    def lean(self, options: tuple[LayerOption, ...]) -> None:
        """L-LEAN."""
        times = [option.forward + option.backward for option in options]
        self.expect("L-LEAN", times == sorted(times), f"the times of the options are {times}.")
        for i, option in enumerate(options):
            for other in (*options[:i], *options[i + 1 :]):
                self.expect(
                    "L-LEAN", not dominates(option, other), f"{_described(option)} dominates {_described(other)}."
                )

    def expands(self, options: tuple[LayerOption, ...]) -> None:
        """L-EXPAND."""
        level = condense(self.flat, (self.cluster,), {self.cluster.name: options})
        schedule = random_schedule(level.graph, Random(self.number).randint)
        above = validate(level.graph, schedule)
        try:
            below = validate(self.flat, expand(level, schedule))
        except InvalidSchedule as error:
            raise self.broken("L-EXPAND", str(error)) from error
        what = f"{above.time} ns, {above.peak} B above; {below.time} ns, {below.peak} B below."
        self.expect("L-EXPAND", below.time == above.time and below.peak <= above.peak, what)

    def repeats(self, options: tuple[LayerOption, ...]) -> None:
        """L-REPEAT and L-NAMES."""
        if self.tally.tries("L-REPEAT"):
            for again in self.reseeded("`options`", lambda: self.source.options(self.graph, seed=self.number)):
                self.expect("L-REPEAT", again == options, "a second call returns other options.")
        if self.tally.tries("L-NAMES"):
            names, what = other_names(self.graph, self.number)
            other = renamed(self.graph, names)
            again = self.quietly("`options`", lambda: self.source.options(other, seed=self.number))
            same = [_numbers(option) for option in again] == [_numbers(option) for option in options]
            self.expect("L-NAMES", same, f"{what} it returns other options.")


_MEMORY: Final = ("phantom", "forward_workspace", "backward_workspace")


def _numbers(option: LayerOption) -> tuple[int, ...]:
    numbers = (option.forward, option.backward, *(getattr(option, name) for name in _MEMORY))
    return (*numbers, len(option.backward_reads), len(option.forward_steps), len(option.backward_steps))


def _described(option: LayerOption) -> str:
    works = f"workspaces {option.forward_workspace} and {option.backward_workspace} B"
    reads = f", reads {', '.join(option.backward_reads)}" if option.backward_reads else ""
    return f"an option of {option.forward} and {option.backward} ns, phantom {option.phantom} B, {works}{reads}"


__all__ = ["SOURCE_LAWS", "check_source"]
