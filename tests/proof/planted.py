"""Wrong proofs, each made of a right one by one change: a line in a table, with the place where the checker must refuse it.

`base` names a document of the fixture `proofs`; `where` is a regular expression for the whole place.
"""

from collections.abc import Callable

from attrs import frozen

LEAF, ROW, TREE = r"proof\.trees\[0\]\.tree\[\d+\]", r"proof\.trees\[0\]\.rows\[\d+\]", r"proof\.trees\[0\]"


@frozen
class Plant:
    """One kind of wrong proof."""

    what: str
    base: str
    change: Callable[[dict], object]
    where: str


def tree(d, k=0):
    """Entries of a tree."""
    return d["trees"][k]["tree"]


def rows(d, k=0):
    """Facts and cuts of a tree."""
    return d["trees"][k]["rows"]


def leaf(d):
    """The first leaf."""
    return next(entry for entry in tree(d) if entry[0] != "branch")


def branches(d):
    """Places of branchings."""
    return [i for i, entry in enumerate(tree(d)) if entry[0] == "branch"]


def cut(d):
    """Place and document of the first cut that complements something."""
    return next((i, row) for i, row in enumerate(rows(d)) if isinstance(row, dict) and row["flip"])


def set_item(holder, key, value):
    """`holder[key] = value`, as an expression."""
    holder[key] = value


def fact(name, d):
    """Place of the first fact of a name."""
    return next(i for i, row in enumerate(rows(d)) if isinstance(row, list) and row[0] == name)


def swapped_children(d):
    """The two leaves under the last branching change places."""
    entries = tree(d)
    i = next(i for i in reversed(branches(d)) if entries[i + 1][0] != "branch" != entries[i + 2][0])
    entries[i + 1], entries[i + 2] = entries[i + 2], entries[i + 1]


def same_child_twice(d):
    """The leaf of 1 stands for the child of 0 as well."""
    entries = tree(d)
    i = next(i for i in reversed(branches(d)) if entries[i + 1][0] != "branch" != entries[i + 2][0])
    entries[i + 1] = entries[i + 2]


def outliving(d):
    """The root's child of 1 is proved by the first leaf, which holds only where the root's variable is 0."""
    entries = tree(d)
    first = leaf(d)
    open_, at = 1, 1
    while open_:  # to the end of the child of 0
        open_ += 1 if entries[at][0] == "branch" else -1
        at += 1
    entries[at:] = [first]


def lanes(d):
    """Places of the rows of lanes."""
    return {i for i, row in enumerate(rows(d)) if isinstance(row, list) and row[0] in ("out", "back")}


def lanes_left_out(d):
    """The lanes take no time."""
    leaf(d)[1][:] = [[i, m] for i, m in leaf(d)[1] if i not in lanes(d)]


def dear_lanes(d):
    """A nanosecond of waiting costs less than what it gives."""
    leaf(d)[1][:] = [[i, m * 64 if i in lanes(d) else m] for i, m in leaf(d)[1]]


def rounded_lane(d):
    """A cut from the row of a lane, in which time is no 0/1 variable."""
    rows(d).append({"rows": [[fact("back", d), 1]], "flip": [], "by": 7})


def forward_instant(d):
    """The bound of a link at the first node."""
    d["instants"] = d["trees"][0]["order"] = [0]


def move_cut_up(d):
    """A cut stands before rows it uses."""
    i, _ = cut(d)
    rows(d).insert(0, rows(d).pop(i))


PLANTED = [
    # another problem
    Plant("another graph's fingerprint", "tree", lambda d: d.update(graph="0" * 64), r"proof"),
    Plant("a larger budget than it was proved for", "tree", lambda d: d.update(budget=d["budget"] * 2), LEAF),
    Plant("a larger budget, of a floor", "floor", lambda d: d.update(budget=d["budget"] + 1), r"proof"),
    Plant("a larger budget, of an infeasible one", "nothing", lambda d: d.update(budget=d["budget"] * 2), LEAF),
    Plant("a bound raised by 1 ns", "tree", lambda d: d.update(bound=d["bound"] + 1), LEAF),
    Plant("a bound raised by 1 ns, captured order", "captured", lambda d: d.update(bound=d["bound"] + 1), LEAF),
    Plant("no schedule, from leaves of cost", "tree", lambda d: d.update(bound=None), LEAF),
    Plant("a floor that bounds time", "floor", lambda d: d.update(bound=10), r"proof"),
    Plant("a negative bound", "tree", lambda d: d.update(bound=-1), r"proof\[bound\]"),
    Plant("a budget of no number", "tree", lambda d: d.update(budget="1"), r"proof"),
    # what it assumes
    Plant("rules left out", "tree", lambda d: d.update(rules=d["rules"][1:]), r"proof"),
    Plant("an unknown theorem", "tree", lambda d: d.update(theorem="magic"), r"proof"),
    Plant("another version", "tree", lambda d: d.update(format="remat-proof/2"), r"proof"),
    Plant("a key too many", "tree", lambda d: d.update(base=0), r"proof"),
    Plant("a key too few", "tree", lambda d: d.pop("bits"), r"proof"),
    Plant("the captured order sold as every order", "captured", lambda d: d.update(theorem="instants"), r"proof.*"),
    # instants and orders
    Plant("an instant of no tree", "tree", lambda d: d.update(instants=[0]), r"proof"),
    Plant("an instant before the loss, with a link", "link", forward_instant, r"proof"),
    Plant("an instant that is not there", "tree", lambda d: d.update(instants=[88, 10**6]), r"proof"),
    Plant("an order left out", "orders", lambda d: d["trees"].pop(), r"proof"),
    Plant("an order twice", "orders", lambda d: set_item(d["trees"], 1, d["trees"][0]), r"proof"),
    Plant("an order that dependencies forbid", "tree", lambda d: d["trees"][0]["order"].reverse(), r"proof"),
    Plant("one instant twice", "tree", lambda d: d.update(instants=[88, 88, 110]), r"proof"),
    Plant("more instants than are enumerated", "tree", lambda d: d.update(instants=list(range(90, 110))), r"proof"),
    # multipliers
    Plant("a multiplier of zero", "tree", lambda d: set_item(leaf(d)[1][0], 1, 0), LEAF),
    Plant("a negative multiplier", "tree", lambda d: set_item(leaf(d)[1][0], 1, -5), r"proof\[trees\].*"),
    Plant(
        "a multiplier that is no whole number", "tree", lambda d: set_item(leaf(d)[1][0], 1, 2.0), r"proof\[trees\].*"
    ),
    Plant("a boolean multiplier", "tree", lambda d: set_item(leaf(d)[1][0], 1, True), r"proof\[trees\].*"),
    Plant("an overflowing multiplier", "tree", lambda d: set_item(leaf(d)[1][0], 1, 1 << 1024), r"proof\[trees\].*"),
    Plant("a multiplier ten times as large", "tree", lambda d: set_item(leaf(d)[1][0], 1, leaf(d)[1][0][1] * 10), LEAF),
    Plant("multipliers left out", "tree", lambda d: set_item(leaf(d), 1, leaf(d)[1][:-3]), LEAF),
    Plant("units too small", "tree", lambda d: d.update(bits=257), r"proof"),
    Plant("units of twice the size", "tree", lambda d: d.update(bits=d["bits"] - 1), LEAF),
    Plant("a row that is not there", "tree", lambda d: set_item(leaf(d)[1][0], 0, len(rows(d))), LEAF),
    # facts
    Plant("an unknown fact", "tree", lambda d: set_item(rows(d)[0], 0, "free"), ROW),
    Plant("a fact with a place too many", "tree", lambda d: rows(d)[fact("mem", d)].append(3), ROW),
    Plant("a reader that does not read", "tree", lambda d: set_item(rows(d)[fact("first", d)], 3, 212), ROW),
    Plant("a reader that is not there", "tree", lambda d: set_item(rows(d)[fact("again", d)], 3, 10**6), ROW),
    Plant("an instant of a fact that is not there", "tree", lambda d: set_item(rows(d)[fact("mem", d)], 1, 2), ROW),
    Plant("a step after the last instant", "tree", lambda d: set_item(rows(d)[fact("next", d)], 1, 1), ROW),
    Plant("an order without a dependency", "tree", lambda d: rows(d).insert(0, ["order", 1, 3, 211]), ROW),
    # cuts
    Plant("a divisor of zero", "tree", lambda d: cut(d)[1].update(by=0), ROW),
    Plant("another divisor", "tree", lambda d: cut(d)[1].update(by=cut(d)[1]["by"] * 2 + 1), LEAF),
    Plant("a complement outside the combination", "tree", lambda d: cut(d)[1]["flip"].append(["y", 0, 80]), ROW),
    Plant("a complement twice", "tree", lambda d: cut(d)[1]["flip"].append(cut(d)[1]["flip"][0]), ROW),
    Plant("a cut that uses itself", "tree", lambda d: cut(d)[1]["rows"].append([cut(d)[0], 1]), ROW),
    Plant("a cut that uses a later row", "tree", move_cut_up, ROW),
    Plant("a cut with a negative multiplier", "tree", lambda d: set_item(cut(d)[1]["rows"][0], 1, -1), r"proof\[.*"),
    Plant("a cut with its own right-hand side", "tree", lambda d: cut(d)[1].update(right=0), ROW),
    # the tree
    Plant("a missing leaf at the end", "tree", lambda d: tree(d).pop(), TREE),
    Plant("a missing leaf within", "tree", lambda d: tree(d).remove(leaf(d)), r"proof\.trees\[0\].*"),
    Plant("a leaf too many", "tree", lambda d: tree(d).append(leaf(d)), LEAF),
    Plant("no leaf at all", "tree", lambda d: tree(d).clear(), TREE),
    Plant("a branching on what is fixed", "tree", lambda d: tree(d).insert(1, tree(d)[0]), LEAF),
    Plant("a branching on a constant", "tree", lambda d: tree(d).insert(0, ["branch", "z", 0, 88]), LEAF),
    Plant("a branching on no variable", "tree", lambda d: tree(d).insert(0, ["branch", "x", 0, 3]), LEAF),
    Plant("children that change places", "tree", swapped_children, LEAF),
    Plant("both children under one value", "tree", same_child_twice, LEAF),
    Plant("a fixing that outlives its subtree", "tree", outliving, LEAF),
    Plant("an unknown kind of leaf", "tree", lambda d: set_item(leaf(d), 0, "trust"), LEAF),
    Plant("a ray of value 0", "nothing", lambda d: set_item(leaf(d), 1, []), LEAF),
    Plant("a ray counted with costs", "nothing", lambda d: set_item(leaf(d), 0, "cost"), LEAF),
    Plant("costs sold as a ray", "tree", lambda d: set_item(leaf(d), 0, "ray"), LEAF),
    # floors
    Plant("a set left out", "floor", lambda d: d["family"].pop(), r"proof"),
    Plant("an empty set", "floor", lambda d: d["family"].append([]), r"proof"),
    Plant("a set of what is not there", "floor", lambda d: d["family"].append([10**6]), r"proof"),
    Plant("a set of a kept datum", "floor", lambda d: d["family"].append([KEPT_DATUM]), r"proof"),
    Plant("no sets", "floor", lambda d: d["family"].clear(), r"proof"),
    Plant("another node", "floor", lambda d: d.update(node=0), r"proof"),
    Plant("the end of the step, where what is kept fits", "floor", lambda d: d.update(node=None), r"proof"),
    Plant("a set that may begin", "floor", lambda d: d["family"].append([0]), r"proof"),
    # links
    Plant("a bound raised by 1 ns, with a link", "link", lambda d: d.update(bound=d["bound"] + 1), LEAF),
    Plant("a faster link to the device", "link", lambda d: set_item(d["link"][1], 0, d["link"][1][0] + 10**7), LEAF),
    Plant("a link to the device without a limit", "link", lambda d: set_item(d["link"][1], 0, 0), LEAF),
    Plant("no latency", "link", lambda d: (set_item(d["link"][0], 1, 0), set_item(d["link"][1], 1, 0)), LEAF),
    Plant("the lanes exchanged", "link", lambda d: d["link"].reverse(), LEAF),
    Plant("a link of one lane", "link", lambda d: d["link"].pop(), r"proof"),
    Plant("no link", "link", lambda d: d.update(link=[]), r"proof"),
    Plant("a link of text", "link", lambda d: d.update(link=["ab", "cd"]), r"proof"),
    Plant("a bandwidth of text", "link", lambda d: set_item(d["link"][0], 0, "1"), r"proof"),
    Plant("the link left out", "link", lambda d: d.pop("link"), r"proof"),
    Plant("sold as without copies", "link", lambda d: (d.pop("link"), d.update(theorem="instants")), ROW),
    Plant("two instants with a link", "link", lambda d: d.update(instants=[*d["instants"], 150]), r"proof"),
    Plant("copies out before there is time", "link", lambda d: rows(d).append(["out", 0, 1 << 50]), ROW),
    Plant("copies back that end early", "link", lambda d: set_item(rows(d)[fact("back", d)], 2, 1), ROW),
    Plant("a lane with a place too many", "link", lambda d: rows(d)[fact("back", d)].append(1), ROW),
    Plant("a lane of no instant", "link", lambda d: set_item(rows(d)[fact("back", d)], 1, 1), ROW),
    Plant("lanes left out", "link", lambda d: lanes_left_out(d), LEAF),
    Plant("waiting that pays", "link", lambda d: dear_lanes(d), LEAF),
    Plant("a ray of lanes", "link", lambda d: (d.update(bound=None), set_item(leaf(d), 0, "ray")), LEAF),
    Plant("a rounding of waiting", "link", lambda d: rounded_lane(d), ROW),
    Plant("a branching on waiting", "link", lambda d: tree(d).insert(0, ["branch", "w", 0, 1]), LEAF),
    Plant("a return of what is read there", "link", lambda d: tree(d).insert(0, ["branch", "o", 0, READ_DATUM]), LEAF),
    Plant("a return of what is kept", "link", lambda d: tree(d).insert(0, ["branch", "o", 0, KEPT_DATUM]), LEAF),
    Plant("a return without a link", "tree", lambda d: tree(d).insert(0, ["branch", "o", 0, 3]), LEAF),
    Plant("a lane without a link", "tree", lambda d: rows(d).append(["out", 0, 0]), ROW),
    # not of the form
    Plant("trees of another shape", "tree", lambda d: d.update(trees={"a": 1}), r"proof"),
    Plant("a leaf of another shape", "tree", lambda d: set_item(leaf(d), 1, "none"), LEAF),
    Plant("a row of another shape", "tree", lambda d: set_item(rows(d), 0, 7), ROW),
]
KEPT_DATUM = READ_DATUM = 0  # set by the test: the fixture's graph knows them
