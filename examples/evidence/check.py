"""Checks the plan, the units, and the command lines without measuring anything."""

import subprocess

from place import ROOT, Place, Problem
from units import all_units, plan_hashes


def check(place):
    place = Place(None, place.plan, place.folder, place.threads, place.given, place.device)
    records = place.records()
    units = all_units(place.plan, records)
    names = [u.id for u in units]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise Problem(f"duplicate unit names: {', '.join(sorted(twice))}")
    plan_hashes(units)
    steps = [(u, s) for u in units if u.steps for s in u.steps(place, records)]
    for unit, step in steps:
        for arg in step.args:
            if not isinstance(arg, (str, int)) and not hasattr(arg, "parts"):
                raise Problem(f"{unit.id}: {step.name}: {arg!r} is not an argument")
    shown = f"{len(units)} units, {len(steps)} commands"
    if not place.given:
        print(f"{shown}: ok; pass --program DIR to check their options too")
        return
    check_options(place, steps)
    print(f"{shown}: ok")


def check_options(place, steps):
    """Checks that the program has every option and knows every method and task."""
    helps, specs, tasks = {}, set(), set()
    for unit, step in steps:
        command = step.args[0]
        if command not in helps:
            words = ask(place, [command, "--help-all"])
            for c in ",[]<>=.;()":
                words = words.replace(c, " ")
            helps[command] = set(words.split())
        options = helps[command]
        for arg in map(str, step.args):
            if arg.startswith("-") and not arg.lstrip("-")[:1].isdigit() and arg not in options:
                raise Problem(f"{unit.id}: `ropewalk {command}` has no {arg}")
        args = [str(a) for a in step.args]
        for text in [b for a, b in zip(args, args[1:]) if command == "finetune" and a == "--set"]:
            for key in [pair.partition("=")[0] for pair in text.split(",")]:
                if not options & {key, f"{key}:"}:
                    raise Problem(f"{unit.id}: `ropewalk finetune --set` has no {key}")
        if "--rope" in args:
            specs.add(args[args.index("--rope") + 1])
        if command == "rope":
            specs.add(args[1])
        if command == "eval":
            tasks.update(args[1].split(","))
    for task in sorted(tasks):
        ask(place, ["eval", "--list", task])
    model = ROOT / place.plan["frozen"]["model"]
    if model.is_file():
        for spec in sorted(specs):
            ask(place, ["rope", spec, "-m", model, "--ctx", place.plan["frozen"]["ctx"], "--json"])


def ask(place, args):
    done = subprocess.run([place.program(), *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"ropewalk {' '.join(map(str, args[:2]))}: {done.stderr.strip()}")
    return done.stdout
