"""DTR's simulator once more, as plainly as can be: objects, sets and recursion, from the paper's appendix C.

The oracle of the kernels; shares no code with the library. `run` takes the lines of a log. Scores: "e*", "ancestors", "eq",
"local", "no" with flags for size and staleness, or "lru". Deallocation: eager and ignore; banish for scores that look at no
neighbor.
"""

import json
import math


class Exhausted(Exception):
    pass


class Storage:
    def __init__(self, size):
        self.size, self.tensors, self.refs, self.locks = size, [], 0, 0
        self.material = self.pinned = self.banished = False
        self.access, self.waiting = -1, set()
        self.group = None

    @property
    def cost(self):
        return sum({id(t.op): t.op.cost for t in self.tensors}.values())

    def neighbors(self, up=True, down=True):
        found = {}
        for t in self.tensors:
            for other in [*(t.parents if up else ()), *(t.children if down else ())]:
                if other.storage is not self:
                    found[other.storage] = True
        return list(found)


class Group:
    def __init__(self, value):
        self.value, self.above = value, None

    def top(self):
        return self if self.above is None else self.above.top()


class Op:
    def __init__(self, cost, outputs):
        self.cost, self.outputs = cost, outputs

    @property
    def size(self):
        return sum(t.size for t in self.outputs)


class Tensor:
    def __init__(self, parents, storage, size):
        self.parents, self.children, self.storage, self.size = list(parents), [], storage, size
        self.defined, self.op, self.refs = False, None, 1


class Oracle:
    def __init__(self, budget, score, dealloc, most):
        self.budget, self.score, self.dealloc, self.most = budget, score, dealloc, most
        self.memory, self.clock, self.pool = 0, 1, []
        self.remat = self.remats = self.evictions = self.peak = 0

    # -- the program

    def call(self, args, cost, outputs):
        op = Op(cost, [])
        for size, alias in outputs:
            storage = args[alias].storage if alias >= 0 else Storage(size)
            tensor = Tensor(args, storage, 0 if alias >= 0 else size)
            tensor.op = op
            storage.tensors.append(tensor)
            storage.refs += 1
            if storage.group is None and not storage.material:
                storage.group = Group(0)
            op.outputs.append(tensor)
        for arg in args:
            arg.children += op.outputs
        if self.dealloc == "banish":
            for t in op.outputs:
                for p in args:
                    if p.storage is not t.storage:
                        p.storage.waiting.add(t)
        self.materialize(op.outputs[0], first=True)
        for t in op.outputs:
            t.storage.access = self.clock
        return op.outputs

    def release(self, t):
        t.refs -= 1
        t.storage.refs -= 1
        if t.storage.refs == 0:
            if self.dealloc == "banish":
                self.banish(t.storage)
            elif t.storage.material and not t.storage.pinned:
                self.evict(t.storage)

    def hold(self, t):
        if not t.defined:
            self.materialize(t, first=False)
        self.pin(t.storage)

    # -- the runtime

    def materialize(self, t, first):
        op = t.op
        for p in t.parents:
            if self.dealloc != "banish" or p.storage.refs > 0:
                p.storage.access = self.clock
        missing = [p for p in t.parents if not p.defined]
        for p in t.parents:
            if p.defined:
                self.lock(p.storage)
        for p in missing:
            if not p.defined:
                self.materialize(p, first=False)
            self.lock(p.storage)
        while self.memory + op.size > self.budget:
            if not self.pool:
                raise Exhausted("oom")
            self.evict(self.victim())
        self.clock += op.cost
        self.memory += op.size
        self.peak = max(self.peak, self.memory)
        if not first:
            self.remat += op.cost
            self.remats += 1
        fresh = [u for u in op.outputs if not u.defined]
        self.memory -= sum(u.size for u in op.outputs if u.defined)
        for u in [*(u for u in op.outputs if u is not t), t]:
            if not u.storage.material:
                u.storage.material = True
                self.pool.append(u.storage)
                u.storage.group.top().value -= u.storage.cost
                u.storage.group = None
            u.defined = True
        for p in t.parents:  # banishing takes parents out of this list while it is walked, as in the public simulator
            self.unlock(p.storage)
            if self.dealloc == "banish":
                p.storage.waiting -= {u for u in fresh if u.storage is not p.storage}
                self.banish(p.storage)
        if self.remat > self.most:
            raise Exhausted("thrashed")

    def lock(self, s):
        if s.locks == 0:
            self.pool.remove(s)
        s.locks += 1

    def unlock(self, s):
        s.locks -= 1
        if s.locks == 0:
            self.pool.append(s)

    def pin(self, s):
        if not s.pinned:
            self.lock(s)
            s.pinned = True

    def evict(self, s):
        s.material = False
        self.evictions += 1
        self.memory -= s.size
        if s in self.pool:
            self.pool.remove(s)
        for t in s.tensors:
            t.defined = False
            if self.dealloc == "banish":
                for p in t.parents:
                    if p.storage is not s:
                        p.storage.waiting.add(t)
        s.group = Group(s.cost)
        for other in s.neighbors():
            if not other.material and other.group.top() is not s.group.top():
                top = other.group.top()
                s.group.top().value += top.value
                top.above = s.group.top()

    def banish(self, s):
        if s.refs > 0 or s.waiting:
            return
        if s.material:
            s.locks = 0
            self.evict(s)
        for t in s.tensors:
            for p in t.parents:
                if p.storage is not s:
                    p.storage.waiting.discard(t)
                    p.children.remove(t)
            for c in t.children:
                if c.storage is not s:
                    c.parents.remove(t)
                    self.pin(c.storage)
        s.banished = True

    # -- the score

    def victim(self):
        best, found = math.inf, None
        for s in self.pool:
            value = self.value(s)
            if value <= best:
                best, found = value, s
            if value == 0:
                break
        return found

    def value(self, s):
        if self.score == "lru":
            return s.access
        measure, by_size, by_staleness = self.score
        below = (s.size if by_size else 1) * (self.clock - s.access if by_staleness else 1)
        return self.cost(s, measure) / below if below > 0 else math.inf

    def cost(self, s, measure):
        if measure == "no":
            return 1
        total = s.cost
        if measure == "eq":
            total += sum({id(n.group.top()): n.group.top().value for n in s.neighbors() if not n.material}.values())
        if measure in ("e*", "ancestors"):
            total += sum(n.cost for n in reach(s, up=True))
        if measure == "e*":
            total += sum(n.cost for n in reach(s, up=False))
        return total


def reach(s, up):
    found, todo = {}, [s]
    while todo:
        for n in todo.pop().neighbors(up=up, down=not up):
            if not n.material and n not in found:
                found[n] = True
                todo.append(n)
    return found


def run(lines, budget, score, dealloc="eager", limit=math.inf):
    records = [json.loads(line) for line in lines]
    compute = sum(int(r["TIME"]) for r in records if "TIME" in r)
    oracle = Oracle(budget, score, dealloc, math.inf if limit == math.inf else (limit - 1) * compute)
    names, status = {}, "ok"
    try:
        play(iter(records), oracle, names)
        for t in list(names.values()):
            if t.refs > 0:
                oracle.hold(t)
    except Exhausted as end:
        status = str(end)
    return {"status": status, "clock": oracle.clock, "remat_cost": oracle.remat, "remats": oracle.remats,
            "evictions": oracle.evictions, "peak": oracle.peak, "compute": compute}  # fmt: skip


def play(records, oracle, names):
    def release(t):
        if oracle.dealloc != "ignore":
            oracle.release(t)
        else:
            t.refs -= 1

    def again(t):
        t.refs += 1
        t.storage.refs += 1

    for r in records:
        kind = r["INSTRUCTION"]
        if kind == "CONSTANT":
            (names[r["NAME"]],) = oracle.call([], 0, [(next(records)["MEMORY"], -1)])
            oracle.pin(names[r["NAME"]].storage)
        elif kind == "CALL":
            outputs = [(next(records)["MEMORY"], next(records)["ALIAS"]) for _ in r["RESULT"]]
            made = oracle.call([names[arg] for arg in r["ARGS"]], r["TIME"], outputs)
            names.update(zip(r["RESULT"], made, strict=True))
        elif kind == "MUTATE":
            args = [names[arg] for arg in r["ARGS"]]
            made = oracle.call(args, r["TIME"], [(args[m].storage.size, -1) for m in r["MUTATE"]])
            for m, new in zip(r["MUTATE"], made, strict=True):
                old, names[r["ARGS"][m]] = names[r["ARGS"][m]], new
                release(old)
        elif kind == "COPY":
            names[r["DST"]] = names[r["SRC"]]
            again(names[r["DST"]])
        elif kind == "COPY_FROM":
            old, names[r["DST"]] = names[r["DST"]], names[r["SRC"]]
            if old is not names[r["DST"]]:
                release(old)
                again(names[r["DST"]])
        elif kind == "RELEASE" and r["NAME"] in names:
            release(names[r["NAME"]])
