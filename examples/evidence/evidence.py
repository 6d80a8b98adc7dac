"""Runs the units of the plan one after another. See run.sh."""

import argparse
import datetime
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import check
import material
from place import ROOT, Place, Problem, canonical, environment, processor, read_records, record_name, write
from units import all_units, plan_hashes

MOST = 40_000


def show(place, id):
    """Makes the texts that a unit reads, and prints its commands."""
    records = place.records()
    units = [u for u in all_units(place.plan, records) if u.id == id and u.steps]
    if not units:
        raise Problem(f"{id}: no such unit, or it has no commands yet; --list prints the units")
    place.claim()
    for step in units[0].steps(place, records):
        print(step.line(place.program()))


class Stopped(Exception):
    """The run was asked to stop. Finished commands are kept."""


def rates(place):
    """Returns tokens per second by kind of work: those measured on this machine, or else those of the plan."""
    known = dict(place.plan["rates"])
    path = place.inside("rates.json")
    if place.out and path.is_file():
        known.update(json.loads(path.read_text(encoding="utf-8"))["rates"])
    return known


def seconds_of(work, known):
    """Estimates the seconds of some work. The time per token is linear in the context, through two measured points."""
    total = 0.0
    for kind, ctx, tokens in work:
        (n, fast), (m, slow) = known[kind]
        slope = (1 / slow - 1 / fast) / (m - n)
        total += tokens * max(1 / fast + slope * (ctx - n), 0.3 / fast)
    return total


def measure_rates(place):
    """Measures rates for about a minute: two windows of the default model, and a few steps of the small model if it exists."""
    path = place.inside("rates.json")
    known = {"processor": processor(place.device), "threads": place.threads, "rates": {}}
    if path.is_file():
        read = json.loads(path.read_text(encoding="utf-8"))
        if all(read[key] == known[key] for key in ("processor", "threads")):
            known = read
    device = ["--device", place.device, "-t", place.threads, "--json", "-q"]
    if "read" not in known["rates"]:
        print("measuring the prefill rate", file=sys.stderr)
        text = material.documents(place, "long")[0]
        found = place.ask(
            ["perplexity", "-m", place.plan["frozen"]["model"], "-f", text, "--ctx", "2048,6144", *device]
        )
        known["rates"]["read"] = [[row["ctx"], round(row["tokens_per_s"], 1)] for row in found["results"]]
        write(path, json.dumps(known, indent=1) + "\n")
    start = place.model("small/start")
    if "small-train" not in known["rates"] and start.is_file():
        print("measuring the training rate", file=sys.stderr)
        points, reads = [], []
        for ctx, batch in ((512, 4), (4096, 1)):
            out = place.inside("work", f"rate-{ctx}.gguf")
            shutil.rmtree(out.with_suffix(".checkpoints"), ignore_errors=True)
            out.unlink(missing_ok=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            args = [
                "finetune",
                "-m",
                start,
                "-d",
                material.lesson(place, "questions"),
                "--targets",
                "full",
                "--ctx",
                ctx,
                "--set",
                f"batch={batch}",
            ]
            place.ask(
                [
                    *args,
                    "--steps",
                    3,
                    "--set",
                    f"held-out=0,cache={place.inside('material', 'rate.tokens')}",
                    "-o",
                    out,
                    *device,
                ]
            )
            log = [json.loads(line) for line in out.with_suffix(".log.jsonl").read_text(encoding="utf-8").splitlines()]
            points.append([ctx, round(max(row["tokens_per_s"] for row in log if "tokens_per_s" in row), 1)])
            text = material.documents(place, "long")[0]
            found = place.ask(["perplexity", "-m", start, "-f", text, "--ctx", ctx, *device])
            reads.append([ctx, round(found["results"][0]["tokens_per_s"], 1)])
        known["rates"]["small-train"], known["rates"]["small-read"] = points, reads
        write(path, json.dumps(known, indent=1) + "\n")


def state(unit, place, records, hashes, units):
    """Returns (state, reason). The state is recorded, waits, ready, or rebuild: ready, but a model is not in this directory."""
    record = records.get(unit.id)
    if record and record["plan"] == hashes[unit.id]:
        return "recorded", ""
    if unit.waits:
        return "waits", unit.waits
    for need in [*unit.needs, *unit.after]:
        other = records.get(need)
        if not other or other["plan"] != hashes[need]:
            return "waits", need
    gone = missing(unit, place, units) if place.out else None
    if gone and place.model(gone.id).with_suffix(".other").exists():
        return "waits", f"this machine makes another model of {gone.id}"
    if gone:
        return "rebuild", f"first the model of {gone.id}"
    return "ready", "its record is from another plan" if record else ""


def missing(unit, place, units):
    """Returns the unit whose model has to be rebuilt first, before `unit` can run in this directory."""
    by_id = {u.id: u for u in units}
    for need in (by_id[n] for n in unit.needs):
        if need.model and not place.model(need.id).is_file():
            return missing(need, place, units) or need
    return None


def list_units(place):
    records = place.records()
    units = all_units(place.plan, records)
    hashes, known, left = plan_hashes(units), rates(place), 0.0
    equal = records.get("frozen/plans", {}).get("figures", {}).get("equal", {})
    for unit in units:
        word, why = state(unit, place, records, hashes, units)
        hours = seconds_of(unit.work, known) / 3600
        left += hours if word != "recorded" else 0
        took = f"took {records[unit.id]['seconds'] / 3600:5.2f} h" if word == "recorded" else f"about {hours:4.2f} h"
        print(f"{word:9} {took}  {unit.id}{f'  ({why})' if why else ''}")
    for name, of in equal.items():
        print(f"equal                  frozen/perplexity/{name}  (same computation as {of})")
    where = (
        "measured on this machine"
        if place.out and place.inside("rates.json").is_file()
        else "from the plan; `run.sh OUT` measures those of this machine"
    )
    print(f"{len(units)} units, about {left:.1f} hours left, estimated with rates {where}")


class Runner:
    def __init__(self, place, build):
        self.place, self.build, self.child, self.asked = place, build, None, False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.stop)

    def stop(self, *_):
        self.asked = True
        if self.child:
            self.child.terminate()

    def between(self):
        if self.asked or self.place.inside("stop").exists():
            raise Stopped

    def step(self, folder, step, deadline):
        """Runs a command that has no output yet. Returns its JSON, or None if the slice is over."""
        kept = folder / f"{step.name}.json"
        if not kept.is_file():
            args, env = [str(a) for a in step.args], os.environ | environment(step.args)
            if step.args[0] == "finetune" and any(any(d.glob("*")) for d in checkpoints(step.makes)):
                args.insert(1, "--resume")
            if step.makes:
                step.makes.parent.mkdir(parents=True, exist_ok=True)
            with open(folder / f"{step.name}.out", "wb") as out, open(folder / f"{step.name}.err", "ab") as err:
                self.child = subprocess.Popen(
                    [self.place.program(), *args], stdout=out, stderr=err, cwd=ROOT, env=env
                )
                try:
                    code = self.child.wait(max(1, deadline - time.monotonic()) if step.resumes else None)
                except subprocess.TimeoutExpired:
                    self.child.terminate()
                    code = self.child.wait()
                    if code in (130, 143):
                        return None
                finally:
                    self.child = None
            if self.asked:
                raise Stopped
            if code != 0:
                said = (folder / f"{step.name}.err").read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise Problem(f"ropewalk {step.args[0]}: exit status {code}: {said[-1] if said else 'no message'}")
            os.replace(folder / f"{step.name}.out", kept)
        text = kept.read_text(encoding="utf-8")
        return json.loads(text) if text.lstrip().startswith(("{", "[")) else {}

    def unit(self, unit, plan_hash, records):
        """Runs the rest of a unit slice by slice, and returns its record."""
        place, folder = self.place, self.place.work(unit.id)
        folder.mkdir(parents=True, exist_ok=True)
        # Outputs of another device are not kept.
        gpu = "" if place.device == "cpu" else f" {processor(place.device)}"
        mark, made_by = folder / "plan", plan_hash + gpu
        if mark.is_file() and mark.read_text() != made_by:
            shutil.rmtree(folder)
            folder.mkdir()
            if unit.model:
                place.model(unit.id).unlink(missing_ok=True)
                remove_checkpoints(place.model(unit.id))
        write(mark, made_by)
        steps = unit.steps(place, records)
        while True:
            self.between()
            begin, out = time.monotonic(), {}
            try:
                for step in steps:
                    self.between()
                    got = self.step(folder, step, begin + 60 * place.plan["minutes"])
                    if got is None:
                        break
                    out[step.name] = got
            finally:
                with open(folder / "slices.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps({"date": now(), "seconds": round(time.monotonic() - begin)}) + "\n")
            if len(out) == len(steps):
                break
            print(f"{unit.id}: saved; starting the next slice", file=sys.stderr)
        slices = [json.loads(line) for line in (folder / "slices.jsonl").read_text(encoding="utf-8").splitlines()]
        record = {
            "unit": unit.id,
            "plan": plan_hash,
            "commit": self.build["commit"],
            "program": self.build["sha256"],
            "commands": [place.shown(s.line()) for s in steps],
            "needs": {n: records[n]["output"] for n in unit.needs if records[n].get("output")},
            "inputs": {place.shown(ROOT / path): place.sha256(path) for path in unit.inputs(place)},
            "processor": processor(place.device),
            "threads": place.threads,
            "seed": unit.seed,
            "date": now(),
            "seconds": sum(s["seconds"] for s in slices),
            "slices": len(slices),
            "figures": unit.figures(place, records, out),
        }
        if unit.model:
            record["output"] = place.sha256(place.model(unit.id))
        # One line for each key, so that records are readable and diffs are short.
        text = (
            "{\n"
            + ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in record.items())
            + "\n}\n"
        )
        if len(text) > MOST:
            raise Problem(f"{unit.id}: the record has {len(text)} bytes; the limit is {MOST}")
        return record, text


def checkpoints(model):
    """Returns the checkpoint directories of the training run that writes `model`, and of its stages."""
    return [model.with_suffix(".checkpoints"), *model.parent.glob(f"{model.stem}.stage-*.checkpoints")]


def remove_checkpoints(model):
    for folder in checkpoints(model):
        shutil.rmtree(folder, ignore_errors=True)
    for path in model.parent.glob(f"{model.stem}.stage-*"):
        path.unlink()


def now():
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")


def take(place, only=None, count=None, remake=None):
    place.claim()
    with open(place.inside(".program.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build = place.freeze()
        measure_rates(place)
    runner, failed, done = Runner(place, build), {}, 0
    locks = place.inside("locks")
    locks.mkdir(exist_ok=True)
    while count is None or done < count:
        records = place.records()
        units = all_units(place.plan, records)
        hashes = plan_hashes(units)
        runner.between()
        others = False
        for unit in units:
            word, why = state(unit, place, records, hashes, units)
            asked = remake == unit.id and word == "recorded" and not place.model(unit.id).is_file()
            if not (word in ("ready", "rebuild") or asked) or (only and not unit.id.startswith(only)):
                continue
            gone = missing(unit, place, units)
            unit, again = gone or unit, asked or bool(gone)
            if unit.id in failed:
                continue
            lock = open(locks / record_name(unit.id), "w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                others = True
                continue
            # Another run can have written it by now.
            fresh = place.records().get(unit.id)
            if place.model(unit.id).is_file() if again else fresh and fresh["plan"] == hashes[unit.id]:
                lock.close()
                break
            hours = seconds_of(unit.work, rates(place)) / 3600
            print(f"{now()} {unit.id}: about {hours:.2f} h", file=sys.stderr, flush=True)
            try:
                if again:
                    shutil.rmtree(place.work(unit.id), ignore_errors=True)
                record, text = runner.unit(unit, hashes[unit.id], records)
                if again and record["output"] != fresh["output"]:
                    replace(place, unit, record, fresh)
                    again = False
            except Problem as problem:
                print(f"{unit.id}: {problem}", file=sys.stderr, flush=True)
                failed[unit.id] = problem
                lock.close()
                break
            if not again:
                write(place.folder / record_name(unit.id), text)
            if unit.model:
                remove_checkpoints(place.model(unit.id))
            print(f"{now()} {unit.id}: recorded", file=sys.stderr, flush=True)
            if unit.id == "small/start":
                measure_rates(place)
            lock.close()
            # What a unit needs does not count.
            done += not again or asked and not gone
            break
        else:
            # What another run measures now can make more units ready.
            if not others:
                break
            time.sleep(1)
    if failed:
        raise Problem(f"{len(failed)} units failed: {', '.join(failed)}")
    print(
        f"{done} units recorded; no other unit is ready" if count is None else f"{done} units recorded", file=sys.stderr
    )


def replace(place, unit, record, old):
    """Checks that no record needs the model that a rebuilt one replaces. GPUs round differently, and so did builds that trained
    with all instructions."""
    dependents = sorted(id for id, r in place.records().items() if unit.id in r["needs"])
    if dependents:
        path = place.model(unit.id)
        path.rename(path.with_suffix(".other"))
        raise Problem(
            f"the new model differs from the recorded one (sha256 {record['output'][:12]}, recorded {old['output'][:12]}); to measure "
            f"the new model, remove the records that depend on the old one, and {path.with_suffix('.other').name}: "
            f"{', '.join(dependents)}"
        )


def take_in(place, folder):
    """Imports the records of other machines that match. Prints the reason for each other record."""
    records, theirs = place.records(), read_records(folder)
    commits = {r["commit"] for r in records.values()} | set(place.plan["commits"])
    if place.out and place.inside("program", "build.json").is_file():
        commits.add(place.build()["commit"])
    taken, refused = 0, 0
    left = dict(theirs)
    while left:
        units = all_units(place.plan, records)
        hashes = plan_hashes(units)
        progress = False
        for unit in units:
            record = left.get(unit.id)
            if record is None or unit.waits:
                continue
            if any(need in left and need not in records for need in unit.needs):
                continue
            del left[unit.id]
            progress = True
            why = misfit(place, unit, record, records, hashes, commits)
            if why:
                print(f"rejected {unit.id}: {why}")
                refused += 1
            else:
                write(place.folder / record_name(unit.id), (folder / record_name(unit.id)).read_text(encoding="utf-8"))
                records[unit.id] = record
                taken += 1
                print(f"imported {unit.id}")
            break
        if not progress:
            break
    for id in left:
        print(f"rejected {id}: not a unit of the current plan")
        refused += 1
    print(f"{taken} imported, {refused} rejected")


def misfit(place, unit, record, records, hashes, commits):
    """Returns why a record of another machine does not match, or an empty string."""
    mine = records.get(unit.id)
    if mine and mine["plan"] == hashes[unit.id]:
        return "a record already exists"
    missing = {
        "plan",
        "commit",
        "commands",
        "needs",
        "inputs",
        "processor",
        "threads",
        "date",
        "seconds",
        "figures",
    } - set(record)
    if missing:
        return f"missing keys: {', '.join(sorted(missing))}"
    if record["plan"] != hashes[unit.id]:
        return f"from another plan: expected {hashes[unit.id][:12]}, found {str(record['plan'])[:12]}"
    if commits and record["commit"] not in commits:
        return f"from commit {str(record['commit'])[:12]}, expected {', '.join(sorted(c[:12] for c in commits))}"
    if len(canonical(record)) > MOST:
        return f"larger than {MOST} bytes"
    for need in unit.needs:
        if need not in records:
            return f"needs {need}, which has no record"
        expected, found = records[need].get("output"), record["needs"].get(need)
        if expected != found:
            return f"measured on another model of {need}: expected {str(expected)[:12]}, found {str(found)[:12]}"
    # Compare with the texts on this machine, or else with those that other records name.
    known = {path: sum for other in records.values() for path, sum in other["inputs"].items()}
    for path, sum in record["inputs"].items():
        here = (place.out / path.removeprefix("OUT/")) if path.startswith("OUT/") and place.out else ROOT / path
        expected = place.sha256(here) if here.exists() else known.get(path)
        if expected is None:
            return f"{path} does not exist here, so its checksum cannot be compared; run `run.sh OUT --import DIR` with an OUT that has the texts"
        if expected != sum:
            return f"{path} differs: expected sha256 {expected[:12]}, found {sum[:12]}"
    return ""


def main():
    parser = argparse.ArgumentParser(
        prog="run.sh", description="Run the units of the plan and record their results", allow_abbrev=False
    )
    parser.add_argument("out", nargs="?", metavar="OUT", help="working directory of this machine; needs several GB")
    parser.add_argument("--list", action="store_true", help="list the units, their state, and their hours")
    parser.add_argument("--show", metavar="UNIT", help="make the texts of a unit in OUT and print its commands")
    parser.add_argument("--check", action="store_true", help="check the plan, and (with --program) the command lines")
    parser.add_argument("--import", dest="folder", metavar="DIR", help="import matching records of other machines")
    parser.add_argument("--program", metavar="DIR", help="use the ropewalk in this directory instead of building one")
    parser.add_argument("--threads", "-t", type=int, default=0, help="threads; 0 uses one per core [default: 0]")
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, or cuda:0, ... [default: cpu]")
    parser.add_argument("--only", metavar="PREFIX", help="run only units whose name starts with PREFIX")
    parser.add_argument("--count", type=int, metavar="N", help="run at most N units")
    parser.add_argument("--remake", metavar="UNIT", help="rebuild the model of a recorded unit, although no unit needs it now")
    parser.add_argument("--plan", metavar="FILE", help="apply the changes in this file to plan.toml")
    parser.add_argument(
        "--records", metavar="DIR", help="directory of the records [default: docs/results/records; with --plan, OUT/records]"
    )
    args = parser.parse_args()
    place = Place(args.out, None, args.records, args.threads, args.program, args.device, args.plan)
    if args.check:
        check.check(place)
    elif args.list:
        list_units(place)
    elif args.show and args.out:
        show(place, args.show)
    elif args.folder and (args.out or not args.plan):
        take_in(place, pathlib.Path(args.folder))
    elif args.out:
        take(place, args.only, args.count, args.remake)
    else:
        parser.error("expected OUT, --list, --check or --import DIR (--show and --import with --plan need OUT)")


if __name__ == "__main__":
    try:
        main()
    except Stopped:
        print("stopped; run the same command again to resume", file=sys.stderr)
        sys.exit(130)
    except Problem as problem:
        print(f"run.sh: {problem}", file=sys.stderr)
        sys.exit(1)
