"""Real vocabularies: texts of many scripts counted by the table of each unit, and constraints on sampled outputs.

    python lab/benchmarks/vocabularies.py folder ... [--units width ...] [--outputs 512]

Each folder has a `tokenizer.json`. A llama with random weights over the vocabulary samples: each unit with "max" and
"exact", and at lengths from 1 on. Prints for each tokenizer how many texts were counted right, how many outputs broke
their limit or missed their exact length, and these outputs.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_lenctrl import LengthConstraintLogitsProcessor
from hf_lenctrl.length_units import LENGTH_UNITS, UnitTable, count_units
from hf_lenctrl.unit_vocabulary import entries_of


TEXTS = [  # the scripts that most people read, and what joins or splits characters
    "The ship left the harbour at eight o'clock, and nobody was on the quay.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë.",
    "Đường đi khó, không khó vì ngăn sông cách núi.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "עטלף אבק נס דרך מזגן שהתפוצץ כי חם",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में स्वतन्त्रता प्राप्त है।",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা নিয়ে জন্মগ্রহণ করে।",
    "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "人人生而自由，在尊严和权利上一律平等。",
    "いろはにほへと ちりぬるを、日本語のテキスト。",
    "모든 인간은 태어날 때부터 자유로우며 존엄과 권리에 있어 동등하다.",
    "ყველა ადამიანი იბადება თავისუფალი.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար։",
    "ሰው ሁሉ ሲወለድ ነጻና እኩል ነው።",
    "Ship 🚢, family 👨‍👩‍👧, flags 🇩🇪🇫🇷, thumbs 👍🏽 and a keycap 1️⃣.",
    "for i in range(10):\n    print(f\"{i}\\t{i**2} €\")  # “quotes” … — ½",
]  # fmt: skip
LONGEST = {"byte": 40, "token": 12, "word": 8, "arial": 12_000}  # other units: 24
POSITIONS = 64
ENDS = ["<end_of_turn>", "</s>", "<|end_of_text|>", "<|im_end|>", "<｜end▁of▁sentence｜>", "<|return|>", "<EOT>"]
ENDS += ["<|endoftext|>"]


def count_wrong(tokenizer, tables: dict[str, UnitTable]) -> list[str]:
    """Return a line for each text and unit whose table and text differ."""
    wrong = []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        decoded = tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for unit, table in tables.items():
            if unit != "token" and int(table.count(ids)) != (right := count_units(decoded, unit)):
                wrong.append(f"{unit}: {int(table.count(ids))}, not {right}: {decoded!r}")
    return wrong


def outputs_of(model, table: UnitTable, constraint: str, count: int) -> tuple[list[int], torch.Tensor]:
    """Sample outputs of lengths from 1 on; return the lengths, and the ids `(count, tokens)` behind the prompt."""
    longest = LONGEST.get(table.unit, 24)
    lengths = [max(1, longest * (k + 1) // count) for k in range(count)]
    eos, prompt = model.generation_config.eos_token_id, torch.full((count, 1), model.generation_config.bos_token_id)
    options = {"eos_token_id": eos, "max_length": POSITIONS, "prompt_length": 1, "start_length": 0}
    process = LengthConstraintLogitsProcessor(table, lengths, constraint, **options)
    mask = torch.ones_like(prompt)
    ids = model.generate(
        prompt, attention_mask=mask, logits_processor=[process], max_length=POSITIONS, do_sample=True, top_k=0
    )
    return lengths, ids[:, 1:]


def check(folder: Path, units: list[str], outputs: int) -> list[str]:
    """Return the lines of a tokenizer."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    special = {tokenizer.convert_ids_to_tokens(i): i for i in entries_of(tokenizer)[1]}
    eos = next(special[name] for name in ENDS if name in special)  # in another vocabulary such a name is text
    tables = {unit: UnitTable.from_tokenizer(tokenizer, unit) for unit in units}
    lines = [f"{folder.name} counted {line}" for line in count_wrong(tokenizer, tables)]
    size: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    entries = next(iter(tables.values())).weights.shape[1]
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=entries, bos_token_id=eos, eos_token_id=eos, pad_token_id=eos, **size)
    )
    written = broken = missed = 0
    kinds = [(unit, constraint) for unit in tables for constraint in ("max", "exact")]
    for k, (unit, constraint) in enumerate(kinds):
        count = outputs * (k + 1) // len(kinds) - outputs * k // len(kinds)
        lengths, ids = outputs_of(model, tables[unit], constraint, count)
        for length, row in zip(lengths, ids, strict=True):
            text = str(tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False))
            written += 1
            found = int((row != eos).sum()) if unit == "token" else count_units(text, unit)
            broken += found > length
            if found > length or (constraint == "exact" and found < length):
                missed += found < length
                lines.append(f"{folder.name} {constraint} {length} {unit}s: {found} in {text!r}")
    states = max(table.states for table in tables.values())
    counted = len(TEXTS) - len({line.rpartition(": ")[2] for line in lines if " counted " in line})
    figures = f"{counted} of {len(TEXTS)} texts right in {len(tables)} units; {written} outputs, {broken} too long"
    return [*lines, f"{folder.name}: {entries} entries, at most {states} states; {figures}, {missed} too short"]


def main(argv=None) -> None:
    """Print the lines of each tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--units", nargs="+", default=list(LENGTH_UNITS))
    parser.add_argument("--outputs", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    for folder in args.folders:
        for line in check(folder, args.units, args.outputs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
