"""Greedy text of transformers from the checkpoints of checkpoints.py: 64 tokens after its 100, and how sure each choice was.

Writes src/import/tests/greedy.json. README.md beside this file has the commands.
"""

import json
from pathlib import Path

import torch
import transformers

CHECKPOINTS = Path(__file__).resolve().parents[2] / "src/import/tests/checkpoints"
PROMPT = [i * 37 % 300 for i in range(100)]
N = 64


def greedy(model):
    """The tokens, and by how much the logit of each exceeds the next one's."""
    tokens, margins = list(PROMPT), []
    with torch.no_grad():
        for _ in range(N):
            # The whole text each time: no cache can be wrong.
            logits = model(torch.tensor([tokens])).logits[0, -1]
            top = torch.topk(logits, 2)
            tokens.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
    return tokens[len(PROMPT):], margins, logits


def main():
    out = {}
    for folder in sorted(p for p in CHECKPOINTS.iterdir() if (p / "config.json").exists()):
        expected = json.loads((folder / "expected.json").read_text())["logits"]
        config = transformers.AutoConfig.from_pretrained(folder)
        model = getattr(transformers, config.architectures[0])
        # Blocks in MXFP4 become floats as they are read.
        packed = hasattr(config, "quantization_config")
        how = dict(quantization_config=transformers.Mxfp4Config(dequantize=True)) if packed else {}
        model = model.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **how).float().eval()
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT])).logits[0, -1][: len(expected)]
        off = float((logits - torch.tensor(expected)).abs().max())
        tokens, margins, _ = greedy(model)
        print(f"{folder.name}: recorded logits differ by {off:.1e}, least margin {min(margins):.1e}")
        if off > 1e-4:
            raise SystemExit(f"{folder.name}: this is not the model of the recording")
        out[folder.name] = {"tokens": tokens, "margins": [round(m, 6) for m in margins]}
    path = CHECKPOINTS.parent / "greedy.json"
    lines = [f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in out.items()]
    path.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
