#!/usr/bin/env python3
"""Renders docs/results.md from the records in docs/results.

    python3 scripts/results.py [--check]    --check writes nothing, shows differences, and exits with 1 if there are any

A record begins with `# Title`. Comments after it are its rows of the page: `<!-- row: TABLE | six cells -->`. The list of all
records is part of the page if the page is short enough, and is docs/results/README.md otherwise.
"""
import difflib
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGE, LIST = DOCS / "results.md", DOCS / "results/README.md"
MOST_LINES = 150
INTRODUCTION = """# Results

Figures that were measured with ropewalk. Each row links to its record, which has the command, the model, the text, the
machine, the date, the commit, and all figures. `scripts/results.py` writes this page from the records; do not edit it.

libllama is the library of llama.cpp, compiled for the same processor. All machines but the H100's had two CPU cores. Speeds are
with two threads unless a row says otherwise. A model is fine-tuned only if its row says so.
"""
NOT_SHOWN = """
## Not shown

- **GPUs,** except for less than an hour each of one H100 and one H200. Decode on the H100 was wrong for some models; with the fix, all
  device tests pass on the H200. Mesa's software Vulkan device was tested; its times are not those of a GPU.
- **Large models.** The largest model with real weights is Qwen2.5-Coder-1.5B. Those of 8B have random weights, and one row is an
  estimate.
- **Retrieval with many questions.** Past the trained context, the tables above have ten questions per length on a small model, and
  one on SmolLM2. [Evidence](evidence.md) has 720 per length and method on a small model, and 40 on SmolLM2, and ranks the trained
  methods differently.
- **Other texts.** Perplexity of real models past their trained context is from one text. Evidence measures twelve documents.
- **Training at the papers' scale.** They train on 400 to 200,000 times as many tokens, and train all parameters.
- **PEFT at 8,192 tokens,** and other training programs.
- **Other processors, and more cores.** ARM was not measured. All speeds of CPUs are from two cores of a shared or virtual machine.
"""
TABLES = {  # section: headers of the first two columns
    "quality": ("Quality by method", "text and method", "perplexity (standard error)"),
    "retrieval": ("Retrieval by method", "task and method", "correct (95% interval; fine-tuned: range of three seeds, ten questions each)"),
    "speed": ("Speed", "test", "ropewalk, tokens/s"),
    "memory": ("Memory", "quantity", "ropewalk"),
    "training": ("Training", "context, precision", "ropewalk, tokens/s"),
    "agreement": ("Agreement with references", "quantity", "ropewalk"),
}


def render():
    """Returns the lines of each file. None is for a file that must not exist."""
    sections, records = {table: [] for table in TABLES}, []
    for path in sorted(set(DOCS.glob("results/*.md")) - {LIST}, key=lambda p: p.stem):
        text = path.read_text("utf-8")
        records.append(f"- [{text.splitlines()[0][2:]}](results/{path.name})")
        for row in re.findall(r"^<!-- row: (.*) -->$", text, re.M):
            table, *cells = row.split(" | ")
            if table not in TABLES or len(cells) != 6:
                sys.exit(f"{path.name}: expected a table of {', '.join(TABLES)} and six cells: {row}")
            sections[table].append("| " + " | ".join(cells + [f"[record](results/{path.name})"]) + " |")
    page = INTRODUCTION.splitlines()
    for table, (title, *columns) in TABLES.items():
        header = columns + ["compared with", "model", "processor", "date", "record"]
        page += ["", f"## {title}", "", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"] + sections[table]
    page += NOT_SHOWN.splitlines()
    whole = page + ["", "## All records", ""] + records
    if len(whole) <= MOST_LINES:
        return {PAGE: whole, LIST: None}
    records = ["# All records", ""] + [record.replace("(results/", "(") for record in records]
    return {PAGE: page + ["", "[All records](results/README.md)"], LIST: records}


differs = False
for path, lines in render().items():
    found = path.read_text("utf-8") if path.exists() else None
    text = lines and "\n".join(lines) + "\n"
    if "--check" not in sys.argv[1:]:
        path.write_text(text, "utf-8") if text else path.unlink(missing_ok=True)
    elif found != text:
        differs, name = True, path.relative_to(DOCS.parent).as_posix()
        print(f"{name} is not what the records say: run python3 scripts/results.py")
        print(*difflib.unified_diff((found or "").splitlines(), lines or [], name, "rendered", lineterm=""), sep="\n")
sys.exit(differs)
