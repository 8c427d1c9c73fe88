"""Settings are refused at birth: every field of every solver, pass, transform and partitioner, and loose arguments."""

import importlib
import math
import pickle
import pkgutil
from pathlib import Path

import attrs
import pytest

import remat.algorithms
from remat.algorithms import (
    Backend,
    ClassBound,
    Clock,
    Condense,
    Continuation,
    Highs,
    HIlp,
    Intervals,
    Linearise,
    MultiStart,
    OptionSource,
    Partitioner,
    Plan,
    Polish,
    Problem,
    ShavingParams,
    Solver,
    StoreAll,
    Sweep,
    Transform,
    best,
    gap,
    gap_above,
    hierarchical,
    is_flat,
    linearised,
    lowest_budget,
    no_plan,
    nodes_at_most,
    parse,
    pool,
    sweep,
    warm,
)
from remat.algorithms._plugins.registry import entries
from remat.errors import BackendMissing, BadArgument, IllFormed, RematError
from remat.ir import Schedule, validate
from tests.algorithms.test_runs_liveness import chain

GOOD = {
    "solver": StoreAll(),
    "plain": StoreAll(),
    "solvers": (StoreAll(),),
    "move": MultiStart(),
    "moves": (MultiStart(),),
    "condition": no_plan,
    "size": 0.01,
    "parts": (StoreAll(),),
    "source": StoreAll().sweep(peaks=1, saves=1),
    "seconds": 1.0,
    "test": is_flat,
    "main": HIlp(),
    "seed_solver": StoreAll(),
    "transform": Linearise(),
    "partition": Intervals(3),
    "levels": Condense(Intervals(3)),
    "top": HIlp(),
    "backend": Highs(),
    "groups": (("a", ("F0",)),),
    "limit": 3,
    "sequences": ((0, 1, 2),),
}
"""A good value of each field that has no default."""
SPECIAL = {("Then", "parts"): (Linearise(), Linearise()), ("IlpSweep", "solver"): HIlp()}

WRONG = (math.nan, math.inf, -math.inf, -1, -0.5, 10**400, "no such word", True, None, object(), b"1", [])
WRONG_TUPLES = ((math.nan,), (-1,), (True,), ("no such word",), (None,))


def settings_classes():
    """Every public class of the algebra that has fields: of the tree, and of the registry."""
    for module in pkgutil.walk_packages(remat.algorithms.__path__, "remat.algorithms."):
        importlib.import_module(module.name)
    ahead, found = (
        [Solver, Transform, Partitioner, OptionSource, Backend],
        {ShavingParams, nodes_at_most, gap, gap_above},
    )
    while ahead:
        for kind in ahead.pop().__subclasses__():
            ahead.append(kind)
            if (
                kind.__module__.startswith("remat.algorithms.")
                and getattr(importlib.import_module(kind.__module__), kind.__name__) is kind
            ):
                found.add(kind)
    for group in ("solvers", "transforms", "partitioners", "backends"):
        made = (one.load() for one in entries(group).values() if one.origin == "remat")
        found |= {one for one in made if isinstance(one, type)}
    return sorted(
        (one for one in found if not one.__name__.startswith("_") and attrs.has(one)), key=lambda one: one.__name__
    )


FIELDS = [(kind, field) for kind in settings_classes() for field in attrs.fields(kind)]


def made(kind, **changed):
    """An object with good values where there is no default."""
    needed = [field.name for field in attrs.fields(kind) if field.default is attrs.NOTHING]
    return kind(**{name: SPECIAL.get((kind.__name__, name), GOOD.get(name)) for name in needed} | changed)


def allowed(field, value):
    """Whether the field's type says that a value of `WRONG` is right."""
    kind = str(field.type)
    if (kind, field.name) == ("str", "solver"):  # CVXPY's name of one; which are installed is asked when it solves
        return isinstance(value, str)
    return (value is None and "None" in kind) or (value is True and "bool" in kind and "Callable" not in kind)


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda one: getattr(one, "__name__", None) or one.name)
def test_every_setting_refuses_what_it_cannot_be(kind, field):
    made(kind)
    taken = []
    for value in (*WRONG, *(WRONG_TUPLES if "tuple" in str(field.type) or "Budgets" in str(field.type) else ())):
        if allowed(field, value):
            continue
        try:
            taken.append((value, made(kind, **{field.name: value})))
        except BadArgument as refusal:
            assert refusal.rule == getattr(kind, "SETTINGS_RULE", "A-SETTING")
            assert f"{kind.__name__}: {field.name} is " in refusal.what
            assert refusal.fix.startswith("give ")
    assert taken == []


def test_the_registry_is_covered():
    covered = {kind.__name__ for kind, _ in FIELDS}
    assert {
        "Continuation",
        "HIlp",
        "Linearise",
        "HPartition",
        "Within",
        "Then",
        "IlpSweep",
        "ShavingParams",
        "Pofo",
    } <= covered
    assert len(FIELDS) > 100


def test_a_continuation_whose_budgets_never_rise_is_refused():
    """`step=1.5` lowered the budget again and again, where it should raise it, and ended only with a deadline."""
    with pytest.raises(BadArgument, match=r"Continuation: step is 1\.5\..* give a number from 0\.01 to 0\.9999"):
        Continuation(step=1.5).solve(Problem(graph=chain(6), budget=16))


@pytest.mark.parametrize("step", [0.01, 0.9999])
def test_the_extreme_steps_of_a_continuation_end(step):
    graph = chain(6)
    outcome = Continuation(step=step, attempts=1, iterations=1).solve(Problem(graph=graph, budget=20, deadline=5))
    assert outcome.status is not None


LOOSE = {
    "a transform before a number": lambda: Linearise() >> 3,
    "a transform as the top": lambda: hierarchical(Intervals(3), top=Linearise()),
    "a test that is a number": lambda: StoreAll().when(3),
    "seconds that are a boolean": lambda: StoreAll().within(True),
    "seconds that never end": lambda: StoreAll().within(math.inf),
    "no seconds": lambda: StoreAll().within(None),
    "an alternative that is none": lambda: StoreAll() | [],
    "a part that is none": lambda: best(StoreAll(), "auto"),
    "a pool of numbers": lambda: pool(3),
    "a list of moves": lambda: Polish([MultiStart()]),
    "a start that is none": lambda: warm(HIlp(), seed=None),
    "a solver that takes no start": lambda: warm(StoreAll(), seed=StoreAll()),
    "a sweep of no solver": lambda: Sweep(3),
    "a sweep of no budgets": lambda: StoreAll().sweep(peaks=0),
    "options of a solver": lambda: Condense(Intervals(3), lower=StoreAll()),
    "no graph": lambda: Problem(graph=None, budget=3),
    "a link in words": lambda: Problem(graph=chain(3), budget=3, link="12GB/s"),
    "a deadline in words": lambda: Problem(graph=chain(3), budget=3, deadline="1"),
    "a budget that is no number": lambda: Problem(graph=chain(3), budget=math.nan),
    "a problem that is a graph": lambda: StoreAll().solve(chain(3)),
    "a seed that is none": lambda: StoreAll().solve(Problem(graph=chain(3), budget=3), seed=0.5),
    "a bound that is no number": lambda: Plan(lower=math.nan),
    "a bound below zero": lambda: Plan(lower=-5),
    "a bound with a fraction": lambda: Plan(lower=10.5),
    "a bound of a class that is no number": lambda: ClassBound(value=math.nan, assumes="a class"),
    "a trail that is text": lambda: Plan(trail="planned"),
    "a plan that is steps": lambda: Plan(schedule=()),
    "a clock without a number": lambda: Clock(math.nan),
    "a clock that is a boolean": lambda: Clock(True),
    "an accuracy below zero": lambda: lowest_budget(chain(3), accuracy=-1),
    "an accuracy that is none": lambda: lowest_budget(chain(3), accuracy=math.nan),
    "a curve of no solver": lambda: sweep(chain(3), [3], 3),
    "replayed under no number": lambda: validate(chain(3), Schedule(()), math.nan),
    "replayed under a boolean": lambda: validate(chain(3), Schedule(()), True),
}


@pytest.mark.parametrize("made", LOOSE.values(), ids=LOOSE)
def test_loose_arguments_are_refused(made):
    with pytest.raises(BadArgument) as refusal:
        made()
    assert refusal.value.fix


UNSWEPT = {
    "a pool": pool(StoreAll()),
    "a pool with a sweep": pool(StoreAll(), HIlp().sweep(peaks=2, saves=2)),
    "a pool with a deadline": pool(StoreAll()).within(3),
    "a pool with a pool": pool(pool(StoreAll()).sweep().within(1), StoreAll()),
}


@pytest.mark.parametrize("source", UNSWEPT.values(), ids=UNSWEPT)
def test_solvers_that_are_not_swept_are_refused_where_options_are_asked_of_them(source):
    for call in (
        lambda: Linearise(blocks=source),
        lambda: linearised(chain(3), blocks=source),
        lambda: Condense(Intervals(2), lower=source),
        lambda: hierarchical(Intervals(2), lower=source, top=HIlp()),
    ):
        with pytest.raises(BadArgument, match=r"(lower|blocks) is .*pool\(…\)\.sweep\(peaks=…, saves=…\)"):
            call()


def test_a_pool_of_solvers_plans_the_clusters_of_clusters():
    assert Condense(Intervals(2), middle=pool(StoreAll())).middle == pool(StoreAll())
    assert Condense(Intervals(2), lower=pool(StoreAll()).sweep().within(3)).lower is not None
    with pytest.raises(BadArgument, match="pool: a part is pool"):
        pool(pool(StoreAll()).within(3))  # its sweep would leave that part as it is


def test_a_plan_that_is_none_is_refused_with_the_solver():
    class Forgetful(Solver):
        def plan(self, problem, clock, seed):
            pass

        def __repr__(self):
            return "Forgetful()"

    with pytest.raises(BadArgument, match=r"Forgetful\(\): the answer of plan is None.*give a Plan"):
        Forgetful().solve(Problem(graph=chain(3), budget=30))


def test_a_wrong_argument_is_a_value_error_and_a_missing_back_end_an_import_error():
    assert issubclass(BadArgument, ValueError) and issubclass(IllFormed, BadArgument)
    assert issubclass(BackendMissing, ImportError) and not issubclass(BackendMissing, ValueError)
    for error in (BadArgument("A-SETTING", "no.", fix="yes."), BackendMissing("A-BACKEND", "none.", fix="install it.")):
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), back.rule, back.fix) == (type(error), str(error), error.rule, error.fix)


def test_an_expression_says_which_setting_is_wrong():
    with pytest.raises(BadArgument, match=r"A-SETTING: Continuation: step is 1\.5") as refusal:
        parse("auto | Continuation(step=1.5)")
    assert isinstance(refusal.value, RematError)


def test_settings_have_one_home():
    """No validator of a setting is written by hand in the rooms of the algorithms, and none of the IR's is borrowed."""
    rooms = Path(remat.algorithms.__file__).parent
    by_hand = [
        str(path.relative_to(rooms))
        for path in sorted(rooms.rglob("*.py"))
        if "_milp" not in path.parts
        and any(words in path.read_text() for words in ("attrs.validators", "attribute: object", "attribute: Any"))
    ]
    assert by_hand == []


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, True])
def test_the_remedy_for_a_whole_number_names_both_of_its_ends(value):
    with pytest.raises(BadArgument) as caught:
        Problem(graph=chain(3), budget=9, host_budget=value)
    assert caught.value.fix == "give an int from 0 to 2^63 - 1 (bytes), or None."
