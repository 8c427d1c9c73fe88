"""Random logs with everything the format has: aliases, several results, mutation, copies, constants, releases, ties, zeros."""

import json
import random


def random_log(seed, calls=40, *, wide_aliases=False):
    """Lines of a log. With `wide_aliases` an operator that makes an alias may have several arguments, so that storages can depend
    on one another."""
    draw, out, live, number = random.Random(seed), [], [], 0
    scale = draw.choice([1, 1, 10**9])

    def new():
        nonlocal number
        number += 1
        return f"x{number}"

    def size():
        return draw.choice([0, 1, 1, 2, 3, 5, 8]) * scale

    def time():
        return draw.choice([0, 1, 1, 2, 3, 7]) * scale + draw.randrange(scale)

    for _ in range(draw.randrange(4)):
        live.append(new())
        out += [
            {"INSTRUCTION": "CONSTANT", "NAME": live[-1]},
            {"INSTRUCTION": "MEMORY", "NAME": live[-1], "MEMORY": size()},
        ]
    for _ in range(calls):
        act = draw.random()
        if act < 0.62 or not live:
            args = [draw.choice(live[-8:]) for _ in range(draw.randrange(min(4, len(live) + 1)))]
            results = [new() for _ in range(draw.choice([1, 1, 1, 2, 3]))]
            out.append({"INSTRUCTION": "CALL", "NAME": "f", "ARGS": args, "RESULT": results, "TIME": time()})
            for result in results:
                alias = draw.randrange(len(args)) if args and draw.random() < 0.25 else -1
                alias = alias if wide_aliases or len(args) == 1 else -1
                out += [{"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": size()},
                        {"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": alias}]  # fmt: skip
            live += results
        elif act < 0.7:
            args = draw.sample(live, draw.randrange(1, min(4, len(live) + 1)))
            places = sorted(draw.sample(range(len(args)), draw.randrange(1, len(args) + 1)))
            out.append({"INSTRUCTION": "MUTATE", "NAME": "m_", "ARGS": args, "MUTATE": places, "TIME": time()})
        elif act < 0.75:
            out.append({"INSTRUCTION": "COPY", "DST": new(), "SRC": draw.choice(live)})
            live.append(out[-1]["DST"])
        elif act < 0.79 and len(live) > 1:
            dst, src = draw.sample(live, 2)
            out.append({"INSTRUCTION": "COPY_FROM", "DST": dst, "SRC": src})
        elif act < 0.97:
            live.remove(gone := draw.choice(live))
            out.append({"INSTRUCTION": "RELEASE", "NAME": gone})
        else:
            out.append({"INSTRUCTION": "RELEASE", "NAME": "nobody"})
    return [json.dumps(record) for record in out]
