"""Checks proofs of lower bounds of rematerialization problems: one file, Python's integers, nothing of the library.

    python check.py GRAPH.json PROOF.json        forms: docs/reference/proofs.md; theorems: docs/explanation/theorems.md

The rows of a theorem are derived from the graph alone; the proof brings multipliers, cuts and a branch tree, or sets of data.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

RULES = ["S-END", "S-KEEP", "S-LINK", "S-MEM", "S-ONCE", "S-ORDER", "S-PHASE", "S-READ"]  # of every theorem
HEAD, TREES = {"format", "theorem", "rules", "graph", "budget", "bound"}, {"instants", "bits", "trees"}
THEOREMS = {"floor": {"node", "family"}, "instants": TREES, "captured": TREES, "link": TREES | {"link"}}
KEPT, OUTSIDE = {"tangent", "param_grad", "input_grad", "output", "updated_buffer"}, {"input", "buffer"}
KINDS, PHASES = {"activation", "phantom", "gradient", "rng_state", *KEPT, *OUTSIDE}, ["forward", "loss", "backward"]
NODE = {"reads": [], "writes": [], "draws": False, "run_once": False}
NODE_KEYS = {"name", "phase", "options", *NODE, "scope", "twin", "signature", "after"}
ROWS = {  # at most 0. z: has run; s: is resident; y: runs again before the next instant; z', s': there; o: returns by a copy
    "first": "+z'c -zc -sd -od -yp -z'p +zp",  # c reads d, which p produces
    "again": "+yc -sd -od -yp",
    "runs": "+z'c -zc +yc -sd -od -yp -z'p +zp",
    "next": "+s'd -sd -yp -z'p +zp",
    "made": "+sd -zp",
    "away": "+od -zp",
    "ran": "+yv -zv",
    "stays": "+zv -z'v",
    "order": "+zv -zu",  # v depends on u
}
# ("s" or "o", instant, datum), ("y" or "z", instant, node), ("w", 0, is it before): other time that passes, (): the constant
Key = tuple[Any, ...]
Expr = dict[Key, int]


class Verdict(NamedTuple):
    """Proved: no schedule (`assumes`: of a class) within `budget` bytes takes less than `bound` ns; None: there is none.
    `link`: of schedules with copies over a link, [bytes per second, latency] to the host and to the device; None: without copies.
    """

    budget: int
    bound: int | None
    assumes: str
    link: Any = None


class Refused(ValueError):
    """What is not proved: the place, what is wrong there, and the id `rule`: T-JSON, T-GRAPH or T-PROOF."""

    def __init__(self, what: str, where: str = "") -> None:
        self.what, self.where, self.rule = what, where, {"g": "T-GRAPH", "p": "T-PROOF"}.get(where[:1], "T-JSON")
        super().__init__(f"{self.rule} at {where}: {what}")


@contextmanager
def at(place: str, done: list[Any] | None = None) -> Iterator[None]:
    """Prefixes refusals inside with the place, and the number of the next item parsed; what cannot be parsed is refused too."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        what = error.what if isinstance(error, Refused) else f"cannot be parsed: {type(error).__name__}, {error!s:.160}"
        raise Refused(what, place + ("" if done is None else f"[{len(done)}]") + getattr(error, "where", "")) from None


def need(holds: object, what: str) -> None:
    """Refuse unless a condition holds."""
    if not holds:
        raise Refused(what)


def read_text(text: bytes, where: str) -> Any:
    """The JSON value of a text without repeated keys."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), f"a repeated key among {[key for key, _ in pairs]!s:.80}")
        return dict(pairs)

    with at(where):
        return json.loads(text, object_pairs_hook=once)


def plain(value: Any, where: str) -> None:
    """Refuse booleans, floats, and ints below 0 or of more than 1,024 bits."""
    if isinstance(value, (list, dict)):
        for i, item in value.items() if isinstance(value, dict) else enumerate(value):
            if type(item) is not int or not 0 <= item < 1 << 1024:
                plain(item, f"{where}[{i}]")
    elif value is not None and type(value) is not str and (type(value) is not int or not 0 <= value < 1 << 1024):
        raise Refused(f"{value!r:.40} is no int of at least 0 and at most 1,024 bits", where)


def node_of(n: Any) -> list[Any]:
    """Name, phase, time, workspace, and the values of `NODE`."""
    [[time, workspace]], values = n["options"], [n.get(key, default) for key, default in NODE.items()]
    need(n.keys() <= NODE_KEYS, f"the keys {[*n]}")
    need(type(values[2]) is type(values[3]) is bool, "a flag that is no boolean")
    return [n["name"], PHASES.index(n["phase"]), time, workspace, *values]


def datum_of(d: Any) -> list[Any]:
    """Name, size, kind, writers, and whether it is kept."""
    kind, writers, keep = d["kind"], d.get("writers", []), d.get("keep", d["kind"] in KEPT)
    need(kind in KINDS and {*d} <= {"name", "size", "kind", "writers", "keep"}, f"the kind or the keys {[*d]}")
    fits = (kind in KEPT) <= keep <= (kind not in OUTSIDE) == (writers != [])
    need(type(keep) is bool and fits, "not the writers or the `keep` of its kind")
    return [d["name"], d["size"], kind, writers, keep]


def links(nodes: list[list[Any]], data: list[list[Any]]) -> list[list[list[int]]]:
    """Reads and writes of nodes and writers of data, by their numbers; writes and writers must agree."""
    names, places = ({row[0]: i for i, row in enumerate(rows)} for rows in (nodes, data))
    reads, writes = ([[places[x] for x in n[i]] for n in nodes] for i in (4, 5))
    writers = [[names[w] for w in d[3]] for d in data]
    need(all(several == sorted(several) for several in writers), "writers out of the graph's order")
    pairs = {(v, d) for v, several in enumerate(writes) for d in several}
    need(pairs == {(v, d) for d, several in enumerate(writers) for v in several}, "writes and writers disagree")
    return [reads, writes, writers]


class Step:
    """A training step.

    before: who a node depends on: producers of its reads, earlier writers of its sums, the previous draw where it draws.
    past: who has run before a node runs, as bits. required: who runs in every schedule: up to the loss, what keeps data, all
    before. producer: a datum's first writer, -1: it counts nothing. reads: what a run finds, sums it adds to included.
    charge: what a run adds. again: who may run again. stays: by S-KEEP, resident from its writer's run on.
    """

    def __init__(self, graph: Any) -> None:
        need({*graph} <= {"format", "name", "computes", "data", "layers"}, f"the keys {[*graph]}")
        need(graph["format"] == "remat-graph/1" and not graph.get("layers"), "no remat-graph/1 without layers")
        with at(".computes", nodes := list[list[Any]]()):
            nodes.extend(map(node_of, graph["computes"]))
        with at(".data", data := list[list[Any]]()):
            data.extend(map(datum_of, graph["data"]))
        self.print = hashlib.sha256(json.dumps([nodes, data], separators=(",", ":")).encode()).hexdigest()
        lists = [x for n in nodes for x in n[4:6]] + [d[3] for d in data] + [[row[0] for row in nodes + data]]
        need(all(type(x) is list and {*map(type, x)} <= {str} and len({*x}) == len(x) for x in lists), "the names")
        numbers = [x for n in nodes for x in n[2:4]] + [d[1] for d in data]
        need(all(type(x) is int and 0 <= x < 1 << 63 for x in numbers), "a size or time that is no int of 63 bits")
        self.phase, self.time, self.size = [n[1] for n in nodes], [n[2] for n in nodes], [d[1] for d in data]
        need(self.phase == sorted(self.phase) and self.phase.count(1) == 1, "phases out of order, or not one loss")
        self.keep, self.stays = [d[4] for d in data], [d[4] and len(d[3]) == 1 for d in data]
        self.set_nodes(nodes, *links(nodes, data))

    def set_nodes(self, nodes: list[Any], reads: list[Any], writes: list[Any], writers: list[Any]) -> None:
        """What is said above, from reads and writes of nodes and writers of data."""
        self.before, self.past, last, every, start = list[set[int]](), list[int](), set[int](), 0, 0
        for v, n in enumerate(nodes):
            makers = {w for d in reads[v] for w in writers[d]}
            need(max(makers, default=-1) < v, f"{n[0]} reads what is not there yet")
            self.before.append(makers | {w for d in writes[v] for w in writers[d] if w < v} | (last if n[6] else set()))
            last, past = {v} if n[6] else last, (start := (1 << v) - 1 if v and self.phase[v - 1] < n[1] else start)
            for u in self.before[v]:
                past |= self.past[u] | 1 << u
            self.past.append(past)
            every |= past | 1 << v if n[1] < 2 or any(self.keep[d] for d in writes[v]) else 0
        self.required = {v for v in range(len(nodes)) if every >> v & 1}
        self.base = sum(self.time[v] for v in self.required)
        self.charge = [n[3] + sum(self.size[d] for d in writes[v]) for v, n in enumerate(nodes)]
        self.producer = [w[0] if w and w[0] in self.required else -1 for w in writers]
        self.reads = [{d for d in reads[v] + data if self.producer[d] not in (-1, v)} for v, data in enumerate(writes)]
        self.again = [n[1] != 1 and not n[7] and v in self.required for v, n in enumerate(nodes)]

    def orders(self, left: list[int]) -> list[list[int]]:
        """Every order in which instants may first run."""
        free = [t for t in left if not any(self.past[t] >> u & 1 for u in left)]
        return [[t, *rest] for t in free for rest in self.orders([u for u in left if u != t])] if left else [[]]

    def family(self, node: int | None, family: list[Any], budget: int) -> None:
        """A proof of a floor: no set of the family is ever resident as a whole where every run fits the budget."""
        members, united = {frozenset(data) for data in family}, {d for data in family for d in data}
        need(all(members) and all(self.producer[d] >= 0 and not self.stays[d] for d in united), "it does not count")

        def impossible(v: int, others: set[int]) -> bool:
            resident, past = others.union(d for d in self.reads[v] if not self.stays[d]), self.past[v]
            kept = (d for d, stays in enumerate(self.stays) if stays and past >> self.producer[d] & 1)
            fits = self.charge[v] + sum(self.size[d] for d in (*resident, *kept)) <= budget
            return not fits or frozenset(resident & united) in members or any(data <= resident for data in members)

        for i, data in enumerate(family):
            for v in {self.producer[d] for d in data}:
                need(impossible(v, {d for d in data if self.producer[d] != v}), f"family[{i}] may begin at node {v}")
        kept = sum(size for size, keep in zip(self.size, self.keep, strict=True) if keep)
        holds = kept > budget if node is None else node in self.required and impossible(node, set())
        need(holds, f"node {node} may run; null: the kept data fit")


class Formulation:
    """The saved-set formulation just before instants first run, in an order; a row is an expression that is at most 0."""

    def __init__(self, step: Step, order: list[int], budget: int, captured: bool, link: Any = None) -> None:
        self.step, self.order, self.budget, self.link, nodes, ran = step, order, budget, link, range(len(step.phase)), 0
        self.done, self.ahead = list[set[int]](), list[set[int]]()
        for k, t in enumerate(order):
            ran, later = ran | step.past[t] | sum(1 << u for u in order[:k]), sum(1 << u for u in order[k:])
            self.done.append({v for v in nodes if (v < t if captured else ran >> v & 1)})
            self.ahead.append({v for v in nodes if (v >= t if captured else (step.past[v] | 1 << v) & later)})
        self.done, self.ahead = [*self.done, set(nodes)], [*self.ahead, set()]
        self.off = {d for d, x in enumerate(step.keep) if link and not x}.difference(*(step.reads[t] for t in order))

    def variable(self, name: str, k: int, i: int) -> Expr:
        """A variable, or the constant that it equals."""
        step, v = self.step, self.step.producer[i] if name in "so" else i
        name = "z" if name == "s" and step.stays[i] else name
        if v < 0 or v in self.ahead[k] or (name == "y" and not step.again[v]) or (name == "o" and i not in self.off):
            return {}
        always = v in self.done[k] if name == "z" else name == "s" and i in step.reads[self.order[k]]
        return {(): 1} if always else {(name, k, v if name == "z" else i): 1}

    def key(self, name: str, k: int, i: int) -> Key:
        """A variable as a proof names it."""
        variable = name in [*"syzo"] and k < len(self.order) and self.variable(name, k, i)
        need(variable == {(name, k, i): 1}, f"{name!s:.20} {k} {i} is no variable")
        return name, k, i

    def row(self, name: str, k: int, i: int = -1, j: int = -1) -> Expr:
        """The row of a fact, given by its name, the instant, the datum or node, the reader or dependency."""
        step, row = self.step, ROWS.get(name, "")
        need(k < len(self.order) - (name == "next"), "no such instant")
        if name == "mem" and i == -1:
            sizes = [(size, self.variable("s", k, d)) for d, size in enumerate(step.size) if size]
            return added((step.charge[self.order[k]] - self.budget, {(): 1}), *sizes)
        if name in ("out", "back") and self.link and j == -1:
            return self.lane(name == "out", i)
        need(row and i >= 0 and (j >= 0) == ("c" in row or "u" in row), "no fact")
        p = step.producer[i] if "d" in row else -1
        need(p >= 0 if "d" in row else i in step.required, "it does not count")
        linked = j in step.required and i in step.reads[j] if "c" in row else "u" not in row or j in step.before[i]
        need(linked, "no reader that counts, or no dependency")
        who = {"d": i, "p": p, "c": j, "v": i, "u": j}
        return added(*[(int(x[0] + "1"), self.variable(x[1], k + ("'" in x), who[x[-1]])) for x in row.split()])

    def lane(self, out: bool, r: int) -> Expr:
        """The row of a lane: copies to the host of what is not made in less than r, or copies back (r is 0), fit the time."""
        step, (rate, latency) = self.step, self.link[not out]
        before = [sum(step.time[u] for u in step.required if p == u or step.past[p] >> u & 1) for p in step.producer]
        need(r <= sum(step.time[v] for v in step.required & self.done[0]) if out else not r, "it may end earlier")
        late = [(size, self.variable("o", 0, d)) for d, size in enumerate(step.size) if before[d] >= r]
        copies = [(latency + (-(-size * 10**9 // rate) if rate else 0), x) for size, x in late]
        runs = [((-1 if out else 1) * step.time[v], self.variable("z", 0, v)) for v in step.required]
        again = [(-step.time[v], self.variable("y", 0, v)) for v in step.required if not out]
        return added((r - (0 if out else step.base), {(): 1}), (-1, {("w", 0, out): 1}), *copies, *runs, *again)

    def cut(self, rows: Any, flip: Any, by: int, above: list[Expr]) -> Expr:
        """Mixed-integer rounding of a combination over 0/1 variables, some complemented, divided by an integer."""
        row, flips = combined(rows, above), {self.key(*variable) for variable in flip}
        whole = all(x[:1] != ("w",) for x in row)
        need(whole and len(flips) == len(flip) and all(map(row.get, flips)), "complements outside, or time that passes")
        row = complemented(row, flips)
        quotient, rest = divmod(-row.pop(()), by)
        rounded = {x: a // by * (by - rest) + max(0, a % by - rest) for x, a in row.items()}
        rounded = complemented(rounded | {(): -quotient * (by - rest)}, flips)
        divisor = gcd(*(a for x, a in rounded.items() if x)) or 1
        return {x: -(-a // divisor) for x, a in rounded.items() if a}

    def least(self, row: Expr, fixed: Expr, unit: int) -> int:
        """The minimum of a row plus the time of reruns and waits [1/unit ns; 0: without], some variables being fixed."""
        value = row.pop((), 0)
        for x in row.keys() | fixed.keys():
            a = row.get(x, 0) + (self.step.time[x[2]] if x[0] == "y" else x[0] == "w") * unit
            need(x[0] != "w" or a >= 0, "waiting that pays")
            value += a * fixed[x] if x in fixed else min(a, 0)
        return value

    def check_tree(self, tree: Any, unit: int, bound: int | None) -> None:
        """Derive the rows in order; check that each leaf proves a time of at least `bound`, or, None, that no schedule exists."""
        rows, cases = list[Expr](), [Expr()]  # fixed variables of each open case, the next case last
        need({*tree} == {"order", "rows", "tree"}, f"the keys {[*tree]}")
        for j, fact in enumerate(tree["rows"]):
            with at(f".rows[{j}]"):
                rows.append(self.cut(**fact, above=rows) if isinstance(fact, dict) else self.row(*fact))
        for i, (kind, *of) in enumerate(tree["tree"]):
            with at(f".tree[{i}]"):
                need(cases, "an entry after the end of the tree")
                fixed = cases.pop()
                if kind == "branch":
                    x = self.key(*of)
                    need(x not in fixed, "a branch on a fixed variable")
                    cases += [fixed | {x: 1}, fixed | {x: 0}]
                    continue
                need(kind == "ray" or (kind == "cost" and bound is not None), f"{kind!s:.20} is no leaf of this tree")
                [multipliers], scale = of, unit if kind == "cost" else 0  # a ray counts no time
                due = ((bound or 0) - self.step.base - 1) * scale
                value = self.least(combined(multipliers, rows), fixed, scale)
                need(value > due, f"shows {value} in units of 1/{unit} ns, not more than {due}")
        need(not cases, "the tree ends early")


def complemented(row: Expr, flips: set[Key]) -> Expr:
    """A row in 1 - x instead of x, for some variables."""
    return {x: -a if x in flips else a for x, a in row.items()} | {(): row.get((), 0) + sum(row[x] for x in flips)}


def added(*terms: tuple[int, Expr]) -> Expr:
    """A sum of expressions, each times an integer."""
    total = Expr()
    for factor, expression in terms:
        for x, a in expression.items():
            total[x] = total.get(x, 0) + factor * a
    return total


def combined(pairs: list[Any], rows: list[Expr]) -> Expr:
    """The sum of rows, each times its multiplier."""
    need(all(m > 0 for _, m in pairs), "a multiplier that is not positive")
    return added(*((m, rows[r]) for r, m in pairs))


def check(graph: Any, proof: Any) -> Verdict:
    """What a proof proves of a graph, both as JSON documents (a graph may be a `Step`); raises `Refused`, with the place."""
    with at("graph"):
        step = graph if isinstance(graph, Step) else Step(graph)
    plain(proof, "proof")
    with at("proof"):
        theorem, budget, bound = proof["theorem"], proof["budget"], proof["bound"]
        need(proof["format"] == "remat-proof/1" and {*proof} == HEAD | THEOREMS[theorem], "not the format's keys")
        need(proof["rules"] == RULES, f"assumes {proof['rules']!s:.80}, the theorem {RULES}")
        need(proof["graph"] == step.print, f"is of another graph; this one is {step.print}")
        need(type(budget) is int and (bound is None or (type(bound) is int and theorem != "floor")), "budget or bound")
        if theorem == "floor":
            step.family(proof["node"], proof["family"], budget)
            return Verdict(budget, None, "")
        instants, captured, link = proof["instants"], theorem == "captured", proof.get("link")
        need(theorem != "link" or ([[*map(type, x)] for x in link] == [[int, int]] * 2 and not instants[1:]), "a link")
        need(instants == sorted({*instants}) and len(instants) <= 6 and proof["bits"] <= 256, "instants or bits")
        need(all(t in step.required and (step.phase[t] or not link) for t in instants), "not required, or early")
        due = [instants] if captured else step.orders(instants)
        need([tree["order"] for tree in proof["trees"]] == due, f"not one tree for each of the orders {due!s:.80}")
        for i, tree in enumerate(proof["trees"]):
            with at(f".trees[{i}]"):
                Formulation(step, due[i], budget, captured, link).check_tree(tree, 1 << proof["bits"], bound)
    return Verdict(budget, bound, "first runs in the captured order" if captured else "", link)


if __name__ == "__main__":
    sys.stdout.write(f"proved: {check(*(read_text(Path(x).read_bytes(), f'file {x}') for x in sys.argv[1:]))}\n")
