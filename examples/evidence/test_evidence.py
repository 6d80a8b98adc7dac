"""Tests of the queue with a stub program, and of the functions that compute figures."""

import contextlib
import copy
import io
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import answers
import bpe
import check
import drawing
import evidence
import material
import recall
import report
import start
import stats
from place import ROOT, Place, Problem, read_plan, read_records, record_name
from units import all_units, plan_hashes

# Answers like the program, as far as the queue needs. It fails at the command that STUB_FAIL names. It starts in half
# the time without site packages, which counts: the tests start it some hundred times.
STUB = """#!{python} -SI
import json, os, pathlib, sys
args = sys.argv[1:]
def value(name):
    return args[args.index(name) + 1]
if args == ["--version"]:
    print("ropewalk 0.1.0 ({commit})")
    sys.exit()
with open(os.environ["STUB_LOG"], "a") as log:
    level = os.environ.get("ROPEWALK_INSTRUCTIONS")
    log.write(" ".join([*([f"[{{level}}]"] if level else []), *args]) + "\\n")
if os.environ.get("STUB_FAIL", "?") in " ".join(args):
    print("error: asked to fail", file=sys.stderr)
    sys.exit(1)
if args[0] == "rope":
    slow = dict(pi=0.5, abf=0.5, ntk=0.8).get(args[1].partition(":")[0], 1.0)
    print(json.dumps(dict(rope=args[1], freqs=[[1.0, 0.1 * slow]], mscale=1.0, temperature=None, branches=[1], bases=[10.0, 30.0])))
elif args[0] == "perplexity":
    files = args[args.index("-f") + 1 : args.index("--protocol")] if "--protocol" in args else [value("-f")]
    ctx = [int(n) for n in value("--ctx").split(",")]
    width = int(value("--bucket")) if "--bucket" in args else ctx[0]
    worse = 0.5 if "pi:factor=2" in args else 0.1 if "ntk:factor=2" in args else 0.0
    texts = [dict(name=f, buckets=[dict(start=s, end=s + width, tokens=width, nll_sum=(3.0 + worse + len(f) / 1000) * width)
        for s in range(0, ctx[0], width)]) for f in files]
    print(json.dumps(dict(rope="r", results=[dict(ctx=n, tokens_per_s=100.0, texts=texts) for n in ctx])))
elif args[0] == "eval":
    lengths = [int(n) for n in value("--lengths").split(",")] if "--lengths" in args else [None]
    rows, lines = [], []
    for task in args[1].split(","):
        for n in lengths:
            count = int(value("-n"))
            for i in range(count):
                lines.append(json.dumps(dict(task=task, length=n, id=str(i), scores=dict(m=float(i % 2 == 0), n=1.0))))
            rows.append(dict(task=task, length=n, samples=count, score=100.0 * ((count + 1) // 2) / count))
    pathlib.Path(value("-o")).write_text("\\n".join([json.dumps(dict(ropewalk="the record of an evaluation")), *lines]))
    print(json.dumps(dict(metric="m", results=rows)))
elif args[0] == "finetune":
    out = pathlib.Path(value("-o"))
    out.write_text(" ".join(a for a in args if "/" not in a))
    out.with_suffix(".log.jsonl").write_text('{{"step":0,"val_loss":3.0}}\\n{{"step":1,"loss":2.5,"tokens_per_s":9.0}}\\n{{"step":1,"val_loss":2.0}}\\n')
    print("{{}}")
else:
    pathlib.Path(value("-o")).write_text("a model")
"""


class Lab(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        at = pathlib.Path(self.folder.name)
        novels, prose = at / "novels", at / "prose"
        novels.mkdir()
        prose.mkdir()
        words = "The moon hung over silver roads while seven travellers counted carriages by lantern light. "
        for name in ("a", "b"):
            (novels / f"{name}.txt").write_text("\n\n".join(f"{name}{i} {words * 3}" for i in range(300)))
        (prose / "p.md").write_text(words * 400)
        (at / "data/ruler").mkdir(parents=True)
        (at / "data/short").mkdir()
        (at / "model.gguf").write_text("m")
        plan = copy.deepcopy(read_plan())
        for texts in plan["texts"].values():
            texts.update(folder=str(novels), characters=1000)
        plan["texts"]["rates"]["files"] = ["b"]
        plan["benchmarks"] = str(at / "data")
        plan["frozen"].update(model=str(at / "model.gguf"), ctx=64, bucket=16, window=32)
        plan["frozen"]["methods"] = [
            m for m in plan["frozen"]["methods"] if m["name"] in ("plain", "pi", "ntk", "yarn", "abf")
        ]
        plan["frozen"]["needle"].update(lengths=[2048, 4096], depths=[0, 100], questions=4, best=1)
        plan["small"]["prose"] = plan["recipe"]["data"] = str(prose)
        plan["small"]["shape"].update(layers=1, width=8, heads=2, feed_forward=8, vocabulary=300)
        plan["small"]["arms"]["seeds"] = [1]
        plan["small"]["arms"]["methods"] = [
            m for m in plan["small"]["arms"]["methods"] if m["name"].startswith(("abf", "harpe"))
        ]
        plan["small"]["arms"]["controls"] = [m for m in plan["small"]["arms"]["controls"] if m["name"].startswith("abf")]
        plan["small"]["measure"].update(questions=4)
        plan["knots"].update(seeds=[1], documents=4, half=31, scored=16, distances=[16, 32])
        plan["recipe"]["methods"] = plan["recipe"]["methods"][:1]
        plan["recipe"].update(target=48, measured=64, bucket=16)
        less = (
            unittest.mock.patch.dict(material.LESSONS, dict.fromkeys(material.LESSONS, 5)),
            unittest.mock.patch.object(material, "EXAMPLES", 100),
            unittest.mock.patch.object(stats, "DRAWS", 100),
        )
        for patch in less:
            patch.start()
            self.addCleanup(patch.stop)
        commit = subprocess.run(
            ["git", "rev-parse", "--short=9", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        (at / "bin").mkdir()
        stub = at / "bin/ropewalk"
        stub.write_text(STUB.format(python=sys.executable, commit=commit))
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
        self.at, self.plan = at, plan
        for to in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            quiet = to(io.StringIO())
            quiet.__enter__()
            self.addCleanup(quiet.__exit__, None, None, None)
        os.environ["STUB_LOG"] = str(at / "log")
        os.environ.pop("STUB_FAIL", None)

    def place(self, out="out"):
        return Place(self.at / out, self.plan, self.at / "records", threads=1, program=self.at / "bin")

    def commands(self):
        log = self.at / "log"
        return log.read_text().splitlines() if log.exists() else []


class Whole(Lab):
    def test_every_unit_is_measured_and_the_report_says_so(self):
        place = self.place()
        evidence.take(place)
        records = place.records()
        units = all_units(self.plan, records)
        self.assertEqual({u.id for u in units}, set(records))
        # Half of the answers are correct, so the gate does not open, and training of the base continues.
        self.assertFalse(records["small/gate"]["figures"]["open"])
        self.assertIn("small/base-5", records["small/train/abf/1"]["needs"])
        self.assertEqual(records["frozen/plans"]["figures"]["equal"], {"yarn": "plain", "abf": "pi"})
        self.assertNotIn("frozen/perplexity/abf", records)
        self.assertIn("frozen/needle/ntk/2048", records)
        self.assertNotIn("frozen/needle/pi/2048", records)
        mean = records["small/train/harpe, bases at their mean/1"]["commands"][0]
        self.assertIn("harpe:bases=20/20", mean)
        self.assertEqual(set(records["small/rate/abf"]["figures"]["loss"]), {"3e-4", "6e-4", "1.2e-3"})
        self.assertEqual(set(records["small/rate/abf at 3e-4"]["figures"]["loss"]), {"3e-4"})
        self.assertIn("--lr 3e-4", records["small/train/abf at 3e-4/1"]["commands"][0])
        stages = (place.out / "material/abf-in-three-stages-arm.toml").read_text()
        self.assertRegex(stages, r"ctx = 1024\nbatch = 4\n(.|\n)*ctx = 4096\nbatch = 1\n")
        self.assertIn("passages.jsonl:0.7", records["knots/train/utk/1"]["commands"][0])
        # All training, and nothing else, uses the instructions that every processor has.
        for line in self.commands():
            self.assertEqual(line.startswith("[avx2] finetune "), "finetune " in line, line)
        self.assertTrue(mean.startswith("ROPEWALK_INSTRUCTIONS=avx2 ropewalk finetune "))
        for record in records.values():
            self.assertEqual(record["threads"], 1)
            self.assertLess(len(json.dumps(record)), evidence.MOST)
            self.assertNotIn(str(self.at / "out"), json.dumps(record))
        page, pictures = report.render(self.plan, records)
        self.assertNotIn(report.NOT_YET, page.partition("## Claims")[2].partition("| Without training, HARPE")[0])
        self.assertIn("| yarn | = |", page)
        self.assertIn("| abf at 3e-4 | 3e-4 | 1 |", page)
        self.assertIn(
            "ntk minus yarn: +0.100 nats (+0.100 to +0.100); pi minus ntk: +0.400 nats (+0.400 to +0.400)", page
        )
        shown = ("frozen", "needles", "found", "small", "recipe")
        self.assertEqual(set(pictures), {f"evidence-{name}.svg" for name in shown})
        self.assertLessEqual(page.count("\n"), 200)
        # A second run measures nothing again.
        n = len(self.commands())
        evidence.take(place)
        self.assertEqual(len(self.commands()), n)


class Queue(Lab):
    def test_a_failed_command_leaves_no_record_and_the_rest_runs(self):
        place = self.place()
        novels = sorted((self.at / "novels").glob("*.txt"))
        os.environ["STUB_FAIL"] = f"{novels[1].stem}-05.txt --protocol window --ctx 64 --bucket 16 --rope plain"
        with self.assertRaisesRegex(Problem, "1 units failed: frozen/perplexity/plain"):
            evidence.take(place, only="frozen/p")
        self.assertNotIn("frozen/perplexity/plain", place.records())
        self.assertIn("frozen/perplexity/pi", place.records())
        del os.environ["STUB_FAIL"]
        before = len(self.commands())
        evidence.take(place, only="frozen/p")
        # Finished documents are not read again.
        self.assertEqual(len(self.commands()) - before, 2)
        self.assertIn("frozen/perplexity/plain", place.records())

    def test_training_resumes_from_its_checkpoint_in_slices(self):
        place = self.place()
        evidence.take(place, only="small/start")

        class Child:
            """Does not finish in the first two slices, and saves when it is told to stop."""

            def __init__(self, args, stdout, **_):
                started.append(list(map(str, args)))
                self.out = pathlib.Path(started[-1][started[-1].index("-o") + 1])
                stdout.write(b"{}")

            def wait(self, timeout=None):
                if len(started) < 3 and timeout is not None:
                    raise subprocess.TimeoutExpired("finetune", timeout)
                if len(started) < 3:
                    folder = self.out.with_suffix(folder_ends)
                    folder.mkdir(exist_ok=True)
                    folder.joinpath("step-1").touch()
                    return 143
                self.out.write_text("a model")
                self.out.with_suffix(".log.jsonl").write_text('{"step":1,"val_loss":2.0}\n')
                return 0

            def terminate(self):
                pass

        for folder_ends in (".checkpoints", ".stage-1.checkpoints"):
            started = []
            with unittest.mock.patch.object(evidence.subprocess, "Popen", Child):
                runner = evidence.Runner(place, place.freeze())
                units = all_units(self.plan, place.records())
                (unit,) = [u for u in units if u.id == "small/base-1"]
                record, _ = runner.unit(unit, plan_hashes(units)[unit.id], place.records())
            self.assertEqual(["--resume" in args for args in started], [False, True, True])
            self.assertEqual(record["slices"], 3)
            self.assertNotIn("--resume", record["commands"][0])
            # As `take` does after it has written the record.
            evidence.remove_checkpoints(place.model(unit.id))
            self.assertEqual([p for p in place.model(unit.id).parent.iterdir() if "checkpoints" in p.name], [])
            shutil.rmtree(place.work(unit.id))

    def test_a_file_stops_between_units(self):
        place = self.place()
        evidence.take(place, count=1)
        (place.out / "stop").touch()
        with self.assertRaises(evidence.Stopped):
            evidence.take(place)
        self.assertEqual(list(place.records()), ["frozen/plans"])

    def test_a_changed_plan_measures_only_dependent_units_again(self):
        place = self.place()
        evidence.take(place, only="frozen/p")
        old = plan_hashes(all_units(self.plan, place.records()))
        self.plan["frozen"]["bucket"] = 32
        new = plan_hashes(all_units(self.plan, place.records()))
        changed = {id for id in old if old[id] != new[id]}
        self.assertEqual(changed, {f"frozen/perplexity/{m}" for m in ("plain", "pi", "ntk")})
        page, _ = report.render(self.plan, place.records())
        self.assertIn("Not used, because the plan has changed since: frozen/perplexity/ntk, frozen/perplexity/pi", page)
        evidence.take(place, only="frozen/p")
        self.assertEqual(len(place.records()["frozen/perplexity/pi"]["figures"]["documents"]["a-05"]), 2)

    def test_matching_records_of_other_machines_are_imported(self):
        other = Place(self.at / "other", self.plan, self.at / "theirs", threads=1, program=self.at / "bin")
        evidence.take(other, only="frozen/p")
        evidence.take(other, only="small/start")
        mine = self.place()
        evidence.take(mine, only="frozen/plans")
        theirs = read_records(self.at / "theirs")
        units = all_units(self.plan, theirs)
        hashes, commits = plan_hashes(units), {theirs["frozen/plans"]["commit"]}
        by_id = {u.id: u for u in units}

        def why(id, change, records=mine.records()):
            record = copy.deepcopy(theirs[id])
            change(record)
            return evidence.misfit(mine, by_id[id], record, records, hashes, commits)

        pi = "frozen/perplexity/pi"
        shutil.rmtree(mine.inside("material"))
        self.assertEqual(
            why(pi, lambda r: None),
            "OUT/material/long/a-05.txt does not exist here, so its checksum cannot be compared; run `run.sh OUT --import DIR` with an OUT that has the texts",
        )
        material.documents(mine, "long")
        self.assertEqual(why(pi, lambda r: None), "")
        self.assertEqual(why("frozen/plans", lambda r: None), "a record already exists")
        self.assertIn("from another plan", why(pi, lambda r: r.update(plan="0" * 64)))
        self.assertIn("from commit 000000000000", why(pi, lambda r: r.update(commit="0" * 40)))
        self.assertIn("missing keys: processor", why(pi, lambda r: r.pop("processor")))
        self.assertIn("larger than 40000 bytes", why(pi, lambda r: r.update(more="x" * 50_000)))
        self.assertIn(
            " differs: expected sha256", why(pi, lambda r: r["inputs"].update({str(self.at / "model.gguf"): "0" * 64}))
        )
        evidence.take_in(mine, self.at / "theirs")
        self.assertEqual(set(mine.records()), set(theirs))

    def test_models_of_another_machine_are_rebuilt_where_a_unit_needs_them(self):
        place = self.place()
        evidence.take(place, only="small/start")
        evidence.take(place, only="small/base-1")
        mine = self.place("other")
        units = all_units(self.plan, mine.records())
        of = {u.id: evidence.state(u, mine, mine.records(), plan_hashes(units), units) for u in units}
        self.assertEqual(of["small/base-2"], ("rebuild", "first the model of small/start"))
        self.assertEqual(of["small/base-1"][0], "recorded")
        before, n = mine.records(), len(self.commands())
        evidence.take(mine, only="small/base-2", count=1)
        self.assertEqual(mine.records(), before | {"small/base-2": mine.records()["small/base-2"]})
        made = [line.partition("-o ")[2].split()[0] for line in self.commands()[n:] if " -o " in line]
        names = [pathlib.Path(path).name.removesuffix(".gguf") for path in made]
        trained = [name for name in names if name.startswith("small.")]
        self.assertEqual(trained, ["small.start", "small.base-1", "small.base-2"])
        # Another model is put aside, and what needs the recorded one waits.
        path = self.at / "records/small.base-1.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"output": "0" * 64}))
        for model in ("small/base-1", "small/base-2"):
            mine.model(model).unlink()
        with self.assertRaisesRegex(Problem, "1 units failed: small/base-1"):
            evidence.take(mine, only="small/base-3")
        units = all_units(self.plan, mine.records())
        (third,) = [u for u in units if u.id == "small/base-3"]
        self.assertEqual(
            evidence.state(third, mine, mine.records(), plan_hashes(units), units),
            ("waits", "this machine makes another model of small/base-1"),
        )

    def test_a_model_that_comes_out_differently_replaces_one_that_nothing_depends_on(self):
        place, path = self.place(), self.at / "records/small.start.json"

        def remake():
            record = json.loads(path.read_text())
            path.write_text(json.dumps(record | {"output": "0" * 64}))
            place.model("small/start").unlink()
            evidence.take(place, remake="small/start", count=1, only="small/start")

        evidence.take(place, only="small/start")
        remake()
        self.assertEqual(place.records()["small/start"]["output"], place.sha256(place.model("small/start")))
        evidence.take(place, only="small/base-1")
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaisesRegex(Problem, "1 units failed: small/start"):
            remake()
        self.assertRegex(said.getvalue(), "remove the records that depend on the old one, .*: small/base-1")
        self.assertFalse(place.model("small/start").exists())

    def test_results_of_gpus_are_not_compared_with_those_of_processors(self):
        place = self.place()
        evidence.take(place, only="recipe")
        ask = answers.answers(self.plan)
        answer = ask["recipe"]
        self.assertIsNotNone(answer(report.Evidence(self.plan, place.records())))
        path = self.at / "records/recipe.perplexity.frozen.yarn.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"processor": "NVIDIA H200"}))
        self.assertIsNone(answer(report.Evidence(self.plan, place.records())))
        evidence.take(place, only="small")
        self.assertIsNotNone(ask["spread"](report.Evidence(self.plan, place.records())))
        for path in self.at.glob("records/small.measure.harpe.*.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"processor": "NVIDIA H200"}))
        self.assertIsNone(ask["spread"](report.Evidence(self.plan, place.records())))

    def test_the_frozen_program_stays(self):
        place = self.place()
        evidence.take(place, only="frozen/plans")
        (place.out / "program/ropewalk").write_text("another")
        with self.assertRaisesRegex(Problem, "differs from the frozen program"):
            evidence.take(self.place())

    def test_a_directory_has_one_plan(self):
        place = self.place()
        evidence.take(place, only="frozen/plans")
        changes = self.at / "changes.toml"
        changes.write_text("minutes = 30")
        with self.assertRaisesRegex(Problem, "out has texts and models of another plan; use another OUT"):
            Place(place.out, changes=changes).claim()
        other = Place(self.at / "other", changes=changes)
        other.claim()
        self.assertEqual((other.plan["minutes"], other.folder), (30, self.at / "other/records"))
        other.inside("program").mkdir()
        other.claim()
        with self.assertRaisesRegex(Problem, "another plan"):
            self.place("other").claim()

    def test_a_text_shorter_than_the_context_is_an_error(self):
        place = self.place()
        self.plan["frozen"]["ctx"] = 1 << 20
        self.plan["frozen"]["bucket"] = 1 << 19
        unit = next(u for u in all_units(self.plan, {}) if u.id == "frozen/perplexity/plain")
        short = {"t": {"rope": "r", "results": [{"texts": [{"name": "t.txt", "buckets": [{"start": 0, "tokens": 99, "nll_sum": 9.0}]}]}]}}
        with self.assertRaisesRegex(Problem, "t: expected 1048576 tokens, found 100; raise `characters`"):
            unit.figures(place, {}, short)

    def test_work_of_another_device_is_not_continued(self):
        evidence.take(self.place(), only="frozen/plans")
        os.environ["STUB_FAIL"] = "-55.txt"
        with self.assertRaises(Problem):
            evidence.take(self.place(), only="frozen/perplexity/plain")
        del os.environ["STUB_FAIL"]
        before = len(self.commands())
        place = self.place()
        place.device = "vulkan:0"
        evidence.take(place, only="frozen/perplexity/plain")
        read = [line for line in self.commands()[before:] if "--bucket" in line]
        self.assertEqual(len(read), 4)

    def test_a_cycle_is_an_error(self):
        units = all_units(self.plan, {})
        units[0].needs = ["small/gate"]
        (gate,) = [u for u in units if u.id == "small/gate"]
        gate.needs = ["frozen/plans"]
        with self.assertRaisesRegex(Problem, "cycle"):
            plan_hashes(units)
        units[0].needs = ["nothing"]
        with self.assertRaisesRegex(Problem, "not a unit"):
            plan_hashes(units)


class Parts(unittest.TestCase):
    def test_the_plan_is_valid(self):
        with contextlib.redirect_stdout(io.StringIO()):
            check.check(Place())

    def test_a_plan_with_changes_is_valid(self):
        path = pathlib.Path("examples/evidence/gpu.toml")
        plan = read_plan(ROOT / path)
        self.assertEqual(plan["frozen"]["methods"], read_plan()["frozen"]["methods"])
        self.assertIn("2e-4", plan["recipe"]["options"])
        units = all_units(plan, {})
        self.assertEqual({u.id.partition("/")[0] for u in units}, {"frozen", "recipe"})
        # Another model is measured by other units, whose records are not those of plan.toml.
        old, new = plan_hashes(all_units(read_plan(), {})), plan_hashes(units)
        self.assertEqual([id for id in new if new[id] == old[id] and "best" not in id], [])
        with contextlib.redirect_stdout(io.StringIO()):
            check.check(Place(plan=plan, records=pathlib.Path("none")))
        page, _ = report.render(plan, {}, path)
        self.assertIn("## Llama 3 8B, frozen, at 16,384 tokens", page)
        self.assertIn(f"with the changes in {path}", page)
        self.assertNotIn("Untie the Knots", page)

    def test_changes_that_do_not_fit_the_plan_are_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "changes.toml")
            with self.assertRaisesRegex(Problem, "changes.toml: No such file"):
                read_plan(path)
            for text, error in (
                ("[frozen]\nmodle = 1", "frozen: modle: expected a key of plan.toml here: name, model, window"),
                ("frozen = 1", "frozen: expected a table, found 1"),
                ("[minutes]", "minutes: expected a number, found {}"),
                ('[frozen]\nmethods = ["plain"]', "methods: expected a list whose items are each a table, found"),
                ('parts = ["smal"]', "parts: expected some of frozen, small, knots, recipe, found smal"),
                ("not toml", "changes.toml: Expected '='"),
            ):
                path.write_text(text)
                with self.assertRaisesRegex(Problem, error):
                    all_units(read_plan(path), {})

    def test_the_page_lists_missing_results(self):
        page, pictures = report.render(read_plan(), {})
        self.assertEqual(page.count(report.NOT_YET), 2 * 12 + 4)
        self.assertEqual(pictures, {})

    def test_names_of_records_are_unique(self):
        units = all_units(read_plan(), {})
        self.assertEqual(len({record_name(u.id) for u in units}), len(units))

    def test_intervals(self):
        low, high = stats.wilson(8, 10)
        self.assertAlmostEqual(low, 49.02, places=1)
        self.assertAlmostEqual(high, 94.33, places=1)
        self.assertEqual(stats.wilson(0, 0), (0.0, 100.0))
        self.assertEqual(stats.bootstrap([2.0] * 5), (2.0, 2.0, 2.0, ()))
        low, high = stats.bootstrap([0.0, 1.0] * 50)[1:3]
        self.assertTrue(0.38 <= low <= 0.42 and 0.58 <= high <= 0.62, (low, high))

    def test_losses_are_compared_over_novels(self):
        a = {"x-05": [[0, 10, 30.0], [64, 10, 40.0]], "y-05": [[0, 10, 20.0], [64, 10, 20.0]]}
        b = {"x-05": [[0, 10, 20.0], [64, 10, 20.0]], "y-05": [[0, 10, 20.0], [64, 10, 10.0]]}
        of = stats.paired(a, b, 64)
        # The novels differ by 2 and 1: a mean of 1.5, a standard error of 0.5, and one degree of freedom.
        self.assertEqual((of.value, of.each), (1.5, ()))
        self.assertAlmostEqual(of.high - of.value, 0.5 * 12.706)
        # Another document of a novel does not make the interval narrower.
        for side in (a, b):
            side["x-55"], side["y-55"] = side["x-05"], side["y-05"]
        self.assertEqual(stats.paired(a, b, 64), of)
        self.assertEqual(stats.paired([a, b], [b, b], 64).each, (1.5, 0.0))
        self.assertEqual(stats.reach(a, b, 64).value, 1.0)
        b["y-05"][1][1] = 9
        with self.assertRaisesRegex(ValueError, "y-05: token counts differ"):
            stats.paired(a, b)

    def test_a_prediction_holds_only_if_the_interval_and_all_seeds_agree(self):
        of = stats.Interval(0.2, 0.1, 0.3, (0.15, 0.25))
        self.assertEqual([of.below(x) for x in (0.05, 0.2, 0.4)], [False, None, True])
        self.assertEqual([of.above(x) for x in (0.05, 0.2, 0.4)], [True, None, False])
        self.assertEqual([of.within(x) for x in (0.05, 0.2, 0.4)], [False, None, True])
        self.assertIsNone(of._replace(each=(0.15, 0.45)).below(0.4))
        verdict = lambda *parts: answers.Answer("", dict(zip("abc", parts))).verdict()
        self.assertEqual(verdict(True, True), "held")
        self.assertEqual(verdict(False), "did not hold")
        self.assertEqual(verdict(True, None, True), "held: a, c; undecided: b")

    def test_the_tokenizer(self):
        text = "the cat and the hat and the bat 2024\n\n  the end, it's naïve"
        tokenizer = bpe.Tokenizer(bpe.learn([text * 3], 16 + 256 + 12))
        self.assertEqual(len(tokenizer.merges), 12)
        self.assertEqual("".join(bpe.cut(text)), text)
        ids = tokenizer.encode(text)
        names = {i: token for token, i in tokenizer.ids.items()}
        bytes_ = {c: b for b, c in bpe.NAMES.items()}
        self.assertEqual(bytes(bytes_[c] for i in ids for c in names[i]).decode(), text)
        self.assertLess(len(ids), len(text.encode()))
        self.assertIn("the", tokenizer.ids)
        # Digits are separate tokens, and no text becomes a special token.
        self.assertEqual(bpe.cut("a 2024"), ["a", " ", "2", "0", "2", "4"])
        self.assertNotIn(0, tokenizer.encode("<|endoftext|>"))
        self.assertEqual(json.loads(tokenizer.json())["model"]["vocab"]["<|endoftext|>"], 0)

    def test_the_model_is_written_as_safetensors(self):
        shape = {
            "layers": 1,
            "width": 8,
            "heads": 2,
            "feed_forward": 16,
            "vocabulary": 280,
            "window": 64,
            "rope_theta": 10000.0,
        }
        with tempfile.TemporaryDirectory() as folder:
            to = pathlib.Path(folder)
            start.write(to, shape, ["a text of some words"], 1)
            data = (to / "model.safetensors").read_bytes()
            n = int.from_bytes(data[:8], "little")
            head = json.loads(data[8 : 8 + n])
            self.assertEqual(head["model.embed_tokens.weight"]["shape"], [280, 8])
            self.assertEqual(
                max(t["data_offsets"][1] for k, t in head.items() if k != "__metadata__"), len(data) - 8 - n
            )
            self.assertEqual(len(data) - 8 - n, 4 * start.parameters(shape))
            self.assertEqual(start.tokenizer_of(to).merges[:1], [tuple(m) for m in start.tokenizer_of(to).merges[:1]])

    def test_lessons_are_the_same_every_time(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.txt")
            path.write_text("Seven grey travellers counted silver carriages near roads. " * 60)
            for stage in recall.STAGES:
                one, two = (list(recall.lines(stage, 20, [str(path)])) for _ in range(2))
                self.assertEqual(one, two)
                self.assertTrue(all(json.loads(line)["text"] for line in one))

    def test_a_key_keeps_its_number_in_all_rounds(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.txt")
            path.write_text("Seven grey travellers counted silver carriages near roads. " * 60)
            lessons = recall.Recall([str(path)], 1)
            for _ in range(50):
                entries = re.findall(r"([a-z-]+)(?:| is|:| is:) ([0-9]{1,7})", lessons.rounds(500))
                self.assertGreater(len(entries), 10)
                self.assertLessEqual(len(set(entries)), 4)

    def test_drawings_are_xml(self):
        import xml.dom.minidom

        chart = drawing.lines(
            "a < b", "x", "y", [("m & n", [(1, 10), (2, 20)]), ("o", [(1, 5.5), (2, 400)])], (1.5, "here")
        )
        maps = drawing.maps("t", [("plain", {(4096, 0): (3, 8)})], [4096], [0, 50])
        dots = drawing.dots("t", "x", [("plain & simple", [0.0]), ("yarn", [20.0, 30.0])])
        eighth = drawing.lines("t", "x", "y", [(str(i), [(1, i + 1), (2, 9)]) for i in range(8)])
        self.assertEqual(eighth.count("stroke-dasharray"), 2)
        for svg in (chart, maps, dots, eighth):
            xml.dom.minidom.parseString(svg)


if __name__ == "__main__":
    unittest.main()
