"""Make training rows that teach a causal model to plan its length: several titles for each abstract.

    python recipes/causal/titles.py runs/causal/base

The plain base model generates six titles for the first words of each of 9,600 abstracts. So an abstract has titles of
several lengths, and a length has many titles. The real pairs, with whole prompts, are added. The new file is
`data/titles.jsonl` in the folder of the base model. To resume, repeat the command: `data/written.jsonl` holds a line
for each batch of abstracts, with the state of the random generator after the batch.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from hf_lenctrl.commands.identity import identity
from hf_lenctrl.commands.output_file import OutputFile


SEPARATOR = "\nTitle:\n"  # base.py has the same separator


def main(argv=None) -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="output folder of base.py")
    parser.add_argument("--prompts", type=int, default=9600, help="number of abstracts")
    parser.add_argument("--titles", type=int, default=6, help="number of titles for each abstract")
    parser.add_argument("--prompt_tokens", type=int, default=32, help="number of first tokens of an abstract to read")
    parser.add_argument("--batch_size", type=int, default=64, help="number of abstracts in a batch")
    args = parser.parse_args(argv)

    set_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(args.base)
    model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32).eval()
    real = (args.base / "data" / "train.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    abstracts = [json.loads(line)["prompt"].removesuffix(SEPARATOR) for line in real]
    ids = tokenizer(abstracts, add_special_tokens=False)["input_ids"]
    texts = tokenizer.batch_decode([abstract[: args.prompt_tokens] for abstract in ids])
    prompts = [text.replace("\ufffd", "") + SEPARATOR for text in texts]
    random.shuffle(prompts)
    prompts = prompts[: args.prompts]
    data = args.base / "data"
    file = OutputFile(
        data / "written.jsonl", {**vars(args), "base": identity(args.base), "rows": identity(data / "train.jsonl")}
    )
    file.begin(len(file.lines))
    if file.lines:
        state = bytearray.fromhex(json.loads(file.lines[-1])["random"])
        torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8))
    for k in range(len(file.lines) * args.batch_size, len(prompts), args.batch_size):
        these = prompts[k : k + args.batch_size]
        batch = tokenizer(these, return_tensors="pt", padding=True, padding_side="left")
        sampling = {"do_sample": True, "temperature": 0.75, "top_k": 40, "num_return_sequences": args.titles}
        out = model.generate(**batch, max_new_tokens=30, pad_token_id=tokenizer.pad_token_id, **sampling)
        rows = []
        for i, answer in enumerate(out[:, batch["input_ids"].shape[1] :]):
            title = tokenizer.decode(answer, skip_special_tokens=True)
            if tokenizer.eos_token_id in answer and len(title) > 8:  # the title is complete and not too short
                rows.append({"prompt": these[i // args.titles], "completion": title})
        random_state = torch.get_rng_state().numpy().tobytes().hex()
        file.append([json.dumps({"first": these[0], "rows": rows, "random": random_state}, ensure_ascii=False)])
        print(f"{k + len(these):,} of {len(prompts):,} abstracts", flush=True)
    written = [row for line in file.lines for row in json.loads(line)["rows"]]
    lines = real + [json.dumps(row, ensure_ascii=False) for row in written]
    random.shuffle(lines)
    (data / "titles.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
