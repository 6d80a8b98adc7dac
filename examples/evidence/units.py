"""The units of the plan, in the order in which they run."""

from frozen import frozen
from knots import knots
from place import Problem, digest
from recipe import recipe
from small import small


PARTS = {f.__name__: f for f in (frozen, small, knots, recipe)}


def all_units(plan, records):
    """Returns every unit that is known from the records so far."""
    for part in plan["parts"]:
        if part not in PARTS:
            raise Problem(f"parts: expected some of {', '.join(PARTS)}, found {part}")
    return [u for part in plan["parts"] for u in PARTS[part](plan, records)]


def plan_hashes(units):
    """Returns a checksum for each unit, over its part of the plan and the parts of the units it needs. A cycle is an error."""
    by_id, done, open_ = {u.id: u for u in units}, {}, []

    def of(id):
        if id in done:
            return done[id]
        if id in open_:
            raise Problem(f"units need each other in a cycle: {' > '.join([*open_, id])}")
        if id not in by_id:
            raise Problem(f"{open_[-1]} needs {id}, which is not a unit")
        open_.append(id)
        needs = {n: of(n) for n in by_id[id].needs}
        open_.pop()
        done[id] = digest([id, by_id[id].spec, needs])
        return done[id]

    for unit in units:
        of(unit.id)
    return done
