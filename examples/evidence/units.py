"""The units of the plan, in the order in which they are taken."""

from frozen import frozen
from knots import knots
from place import Problem, digest
from recipe import recipe
from small import small


def all_units(plan, records):
    """Every unit that the records so far make known."""
    return [u for part in (frozen, small, knots, recipe) for u in part(plan, records)]


def plan_hashes(units):
    """Of each unit: the checksum of its part of the plan and of those it rests on. A circle is an error."""
    by_id, done, open_ = {u.id: u for u in units}, {}, []

    def of(id):
        if id in done:
            return done[id]
        if id in open_:
            raise Problem(f"units need one another in a circle: {' > '.join([*open_, id])}")
        if id not in by_id:
            raise Problem(f"{open_[-1]} needs {id}, which is no unit")
        open_.append(id)
        needs = {n: of(n) for n in by_id[id].needs}
        open_.pop()
        done[id] = digest([id, by_id[id].spec, needs])
        return done[id]

    for unit in units:
        of(unit.id)
    return done
