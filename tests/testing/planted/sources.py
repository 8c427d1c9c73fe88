"""Option sources with one bug each: two schedules of a block as options, behind a mistake that authors make."""

import random

from attrs import evolve, frozen

from remat.algorithms import OptionSource
from remat.algorithms._core.options import undominated
from remat.errors import RematError
from remat.ir import Phase, Schedule, option_of


def honest(block):
    """The captured order, and the forward run once more behind the loss."""
    names = [node.name for node in block.computes]
    again = [node.name for node in block.computes[: block.loss] if not node.run_once]
    found = []
    for runs in (names, [*names[: block.loss + 1], *again, *names[block.loss + 1 :]]):
        try:
            found.append(option_of(block, Schedule.from_runs(block, runs)))
        except RematError:
            continue
    return undominated(found)


@frozen
class Two(OptionSource):
    """A sound source."""

    def options(self, block, *, clock=None, seed=0):
        return honest(block)


@frozen
class SmallPhantoms(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return tuple(evolve(one, phantom=one.phantom // 2) for one in honest(block))


@frozen
class ForgetsReruns(OptionSource):
    """The time of the backward without what runs again."""

    def options(self, block, *, clock=None, seed=0):
        once = sum(node.option.time for node in block.computes if node.phase is Phase.BACKWARD)
        return tuple(evolve(one, backward=once) for one in honest(block))


@frozen
class ForgetsWorkspaces(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return tuple(evolve(one, forward_workspace=0, backward_workspace=0) for one in honest(block))


@frozen
class ForgetsReads(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return tuple(evolve(one, backward_reads=()) for one in honest(block))


@frozen
class NoSchedules(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return tuple(evolve(one, forward_steps=(), backward_steps=()) for one in honest(block))


@frozen
class HalfASchedule(OptionSource):
    """The last run of the backward is left out."""

    def options(self, block, *, clock=None, seed=0):
        return tuple(evolve(one, backward_steps=one.backward_steps[:1]) for one in honest(block) if one.backward_steps)


@frozen
class Dominated(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return tuple(
            worse
            for one in honest(block)
            for worse in (one, evolve(one, phantom=one.phantom + 1, forward_profile=(), backward_profile=()))
        )


@frozen
class SlowestFirst(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return tuple(sorted(honest(block), key=lambda one: -one.forward - one.backward))


@frozen
class ByChance(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return tuple(one for one in honest(block) if random.random() < 0.5)


@frozen
class FirstByName(OptionSource):
    """Runs again what comes first by name in the forward."""

    def options(self, block, *, clock=None, seed=0):
        names = [node.name for node in block.computes]
        again = [min(node.name for node in block.computes[: block.loss] if not node.run_once)]
        runs = [*names[: block.loss + 1], *again, *names[block.loss + 1 :]]
        return (option_of(block, Schedule.from_runs(block, runs)),)


@frozen
class NeverEnds(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        found = ()
        while len(found) < 100:
            found = honest(block)
        return found


@frozen
class AnswersAList(OptionSource):
    def options(self, block, *, clock=None, seed=0):
        return list(honest(block))


@frozen
class Raises(OptionSource):
    """Expects every block to have two nodes in its forward."""

    def options(self, block, *, clock=None, seed=0):
        assert block.loss >= 2, block.computes[2]
        return honest(block)


SOURCES = {
    SmallPhantoms(): "L-OPTION",
    ForgetsReruns(): "L-OPTION",
    ForgetsWorkspaces(): "L-OPTION",
    ForgetsReads(): "L-OPTION",
    NoSchedules(): "L-OPTION",
    HalfASchedule(): "L-OPTION",
    Dominated(): "L-LEAN",
    SlowestFirst(): "L-LEAN",
    ByChance(): "L-GLOBAL",
    FirstByName(): "L-NAMES",
    NeverEnds(): "L-TIME",
    AnswersAList(): "L-INT",
    Raises(): "L-RAISE",
}
"""Each planted bug, and the laws that it may break first."""
