"""Formulations of lower bounds with one bug each: a line of our own builders changed, as an author may get it wrong."""

import inspect
import sys
import types
from contextlib import ExitStack, contextmanager
from unittest import mock

from attrs import field, frozen

from remat.algorithms._bounds import fixed_order, floor, instants, ordered_instants
from remat.algorithms._copies import link_bound
from remat.algorithms._staged import form_events, form_published, knapsack
from remat.testing import library_relaxations, link_relaxations
from remat.testing.library_relaxations import (
    AtInstant,
    AtInstants,
    AtLoss,
    InStages,
    ResidentTogether,
    Staged,
)
from remat.testing.link_relaxations import AtInstantWithLink
from remat.testing.relaxation import Relaxation


@frozen
class Changed:
    """A formulation whose builder has a line changed.

    Attributes:
        relaxation: what is checked. module: of the builder. line: its text, which is replaced by `by` wherever it stands.
    """

    relaxation: Relaxation
    module: types.ModuleType = field(repr=False)
    line: str
    by: str

    @contextmanager
    def planted(self):
        """While it lasts the relaxation is built by the changed module."""
        source = inspect.getsource(self.module)
        assert self.line in source, f"{self.module.__name__} has no {self.line!r} any more"
        name = f"{self.module.__name__}_with_a_bug"
        changed = types.ModuleType(name)
        with ExitStack() as stack:
            sys.modules[name] = changed  # mock.patch.dict would take out what is imported meanwhile, as by numba
            stack.callback(sys.modules.pop, name)
            exec(compile(source.replace(self.line, self.by), name, "exec"), changed.__dict__)
            for user in (library_relaxations, link_relaxations):
                for word, value in list(vars(user).items()):
                    if getattr(value, "__module__", None) == self.module.__name__ and hasattr(changed, word):
                        stack.enter_context(mock.patch.object(user, word, getattr(changed, word)))
            yield self.relaxation


_MADE = "[*supply, *needed], runs[producer[d[first]]] - runs[c[first]]"
_LINK = "[*supply, (self.resident[end, stays], 1)], runs[producer[stays]]"
_KEPT = "self.permanent = permanent(flat)"
_ONE = AtInstant()
_COPIES = AtInstantWithLink()
_LOSS = AtLoss()
_SETS = AtLoss(working_sets=True)

BOUNDS = {
    "a lane binds where nothing is copied": Changed(
        _COPIES, link_bound, "np.minimum(head[data], side.rhs)", "head[data]"
    ),
    "nothing waits before the instant": Changed(
        _COPIES, link_bound, "[_waited(wait), _chosen(instant.ran, -flat.time)]", "[_chosen(instant.ran, -flat.time)]"
    ),
    "what is off serves first runs only": Changed(_COPIES, link_bound, '("first", "again", "runs")', '("first",)'),
    "a head counts twice": Changed(_COPIES, link_bound, "side.rhs - r)", "side.rhs - 2 * r)"),
    "what is off is resident too": Changed(
        _COPIES,
        link_bound,
        "self.rhs += [0] * len(facts)",
        "self.rhs += [-1] * len(facts)",
    ),
    "reruns after the instant give the lane no time": Changed(
        _COPIES, link_bound, ", _chosen(instant.again, -flat.time)]", "]"
    ),
    "takes the captured order for any": Changed(_ONE, instants, "if fixed or phase == LOSS:", "if True:"),
    "a reader not decided always reads": Changed(_ONE, instants, "needed = [(ran[reader], -1),", "needed = ["),
    "takes a sum for kept while it is begun": Changed(_ONE, instants, _KEPT, "self.permanent = flat.keep"),
    "outputs are charged twice": Changed(
        _ONE,
        instants,
        "_memory_row(flat, columns, reads, budget - int(flat.charge[at]))",
        "_memory_row(flat, columns, reads, budget - int(flat.charge[at]) - "
        "int(flat.size[row_of(flat.writes, at)].sum()))",
    ),
    "backward nodes never run again": Changed(
        _ONE, instants, "(state != AHEAD) & flat.replay", "(state != AHEAD) & (flat.phase == 0)"
    ),
    "contributors to sums never run again": Changed(
        _ONE, instants, "(state != AHEAD) & flat.replay", "(state != AHEAD) & flat.rerun"
    ),
    "what first runs in a stage is not there in it": Changed(
        AtInstants(), ordered_instants, _MADE, "[*supply[:2], *needed], -runs[c[first]]"
    ),
    "what first runs in a stage does not stay": Changed(
        AtInstants(),
        ordered_instants,
        _LINK,
        "[*supply[:2], (self.resident[end, stays], 1)], 0 * stays",
    ),
    "sums of several instants are taken for kept": Changed(
        AtInstants(), ordered_instants, _KEPT, "self.permanent = flat.keep"
    ),
    "all before an earlier instant has run": Changed(
        AtInstants(),
        ordered_instants,
        "self.state[k, instants[k - 1]] = DONE",
        "self.state[k, : instants[k - 1] + 1] = DONE",
    ),
    "rounded rows leave out a datum that fits": Changed(
        AtInstants(coarse=True),
        ordered_instants,
        "add_rounded(self.builder, columns, sizes, room)",
        "add_rounded(self.builder, columns, sizes, room - int(sizes.max(initial=0)))",
    ),
    "a stage reads what it makes from before it": Changed(
        InStages(), fixed_order, "~self.permanent[d] & (self.flat.producer[d] < at)", "~self.permanent[d]"
    ),
    "what a rerun makes does not stay": Changed(
        InStages(), fixed_order, "*self._supply(span, stays)]", "*self._supply(span, stays)[:1]]"
    ),
    "a rerun in stages taken together is one in each of them": Changed(
        InStages(coarse=True),
        fixed_order,
        "(again[nodes], 1), *split]",
        "(again[nodes], 1), *split[:1]]",
    ),
    "a rerun in stages of some order is one in each of them": Changed(
        AtInstants(coarse=True),
        ordered_instants,
        "(again[nodes], 1), *terms]",
        "(again[nodes], 1), *terms[:1]]",
    ),
    "the loss is charged its first option": Changed(
        _LOSS, knapsack, "min(self.stage.charge[loss])", "self.stage.charge[loss][0]"
    ),
    "a rerun before the loss leaves no phantom": Changed(
        _LOSS,
        knapsack,
        "for runs in (self.first[writer], self.early[writer]) if runs",
        "for runs in (self.first[writer],) if runs",
    ),
    "what some option reads is always read": Changed(
        _SETS,
        knapsack,
        "if cell.keep or _always_read(self.stage, t, cell):",
        "if cell.keep or any(r == t for r, _ in cell.readers):",
    ),
    "backward nodes keep the captured order": Changed(
        _SETS,
        knapsack,
        "if all(w <= loss or before[t, w] for w, _ in cell.writers)]",
        "if all(w < t for w, _ in cell.writers)]",
    ),
    "no backward node runs again in stages": Changed(
        Staged(),
        form_events,
        "slots = slots_of(stage) if slots is None",
        'slots = slots_of(stage, "backward-once") if slots is None',
    ),
    "a kept sum is resident before it is complete": Changed(
        Staged(),
        form_events,
        "self.kept_bytes[complete + 1 :] += cell.size",
        "self.kept_bytes[complete :] += cell.size",
    ),
    "a reader keeps what it reads": Changed(
        Staged("published"),
        form_published,
        "b.row([*run, (delete, -1), *times(-1, stays), *times(-1, later)])",
        "b.row([*run, *times(-1, stays)])",
    ),
    "what a run reads is counted twice": Changed(
        ResidentTogether(),
        floor,
        "self._bytes(rest.union(self.reads[p])))",
        "self._bytes(rest) + 2 * self._bytes(self.reads[p]))",
    ),
    "all nodes have run before any": Changed(ResidentTogether(), floor, "ran[v] |= forward", "ran[v] |= 255"),
}
"""Each bug by its words."""
