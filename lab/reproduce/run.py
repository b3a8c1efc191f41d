"""Run the rows of a paper's table, and set them beside the paper's figures.

    python lab/reproduce/run.py headline_en --train_file rows.jsonl
    python lab/reproduce/run.py headline_en --train_file rows.jsonl --rows ldpe lrpe

Every row is trained as `lenctrl train` does, on the same data and steps, tested at the table's lengths, and appended
to `results.jsonl` as soon as it is known. To resume, repeat the command; it resumes within a row too. `tables.md`
holds what is known so far. Rows that the table names in `seeds` are trained once a seed, `ldpe` with seed 1 and
`ldpe_seed2` with seed 2; all rows with seed 1 come first. A translation table shows the seed with the best BLEU on the
validation rows, and the mean of all. The `protocol` of a table says how the paper measures: on which test rows, where
outputs are cut for ROUGE recall, and by which search translations are written. `--set` changes an option of every row:
`validation_file=dev.jsonl test_file=test.jsonl` for splits of your own, `predictor.encoder_name_or_path=bert` for the
length predictor of a translation table.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import baselines  # noqa: F401  registers the families of the papers' baselines
import golc
import yaml
from ensemble import LengthControlEnsemble
from safetensors.torch import load_file
from translations import TranslationTables, load_systems, number, translation_tables

from hf_lenctrl.commands import generate
from hf_lenctrl.commands import predictor as train_length_predictor
from hf_lenctrl.commands import train as train_seq2seq
from hf_lenctrl.commands.checkpoints import checkpoints_of, state_of, trained_steps
from hf_lenctrl.commands.identity import identity
from hf_lenctrl.commands.recipes import did_you_mean
from hf_lenctrl.commands.rows import Rows
from hf_lenctrl.conversion import tokenizer_of
from hf_lenctrl.evaluation.metrics import lead, length_metrics, rouge_metrics
from hf_lenctrl.inference.pipeline import LengthControlledGenerationPipeline
from hf_lenctrl.length_units import count_texts


HERE = Path(__file__).resolve().parent
RECALL, F1 = ([f"rouge{n}_{part}" for n in "12L"] for part in ("recall", "f1"))
MEASURES = ("variance", *RECALL, "rows", "variance_all", "mae", "exact", "over", "distinct", *F1)
# Tables 1, 2 and 4 of Takase & Okazaki 2019 have recall and variance, Nguyen et al. 2023 have F1
HEADLINES = (
    ("ROUGE recall (1, 2, L), by the paper's protocol", RECALL),
    ("Variance, by the paper's protocol", ["variance"]),
    ("All test rows: variance / mean absolute error", ["variance_all", "mae"]),
    ("All test rows: share that is exact / share that is too long", ["exact", "over"]),
    ("All test rows: share of different texts", ["distinct"]),
    ("All test rows: ROUGE F1 (1, 2, L)", F1),
)
# Table 1 of Oka et al. 2020
TRANSLATION = "BLEU / length ratio / variance / share of different texts"
TRANSLATION_MEASURES = ["bleu", "length_ratio", "variance", "distinct"]


def find_table(name: str) -> Path:
    """Return the file of a table, by a path to a YAML or by a name in this folder; raise `ValueError` for another."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    known = {path.stem: path for path in sorted(HERE.glob("*.yaml"))}
    if name not in known:
        raise ValueError(f"there is no table {name!r}{did_you_mean(name, known)}; the tables are {', '.join(known)}")
    return known[name]


def load_table(path: Path) -> dict:
    """
    Load a table of lab/reproduce/, with the options of its `base:` YAMLs.

    Returns:
        `dict` with `title`, `lengths`, `rows`, `options`, the `paper`'s figures and, for translations, `predictor`.
    """
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, base in (
        ("options", spec.pop("base", None)),
        ("predictor", spec.get("predictor", {}).pop("base", None)),
    ):
        if base is not None:
            spec[name] = {**yaml.safe_load((path.parent / base).read_text(encoding="utf-8")), **spec.get(name, {})}
    if isinstance(spec.get("seeds"), int):  # the number of seeds of every row
        spec["seeds"] = dict.fromkeys(spec["rows"], spec["seeds"])
    return spec


def rows_of(spec: dict) -> dict[str, dict]:
    """
    Return the table's rows, a second one for those that the paper trains without the lengths of the test, and one more
    for each further seed.
    """
    rows = dict(spec["rows"])
    for name in spec.get("unseen", []):
        rows[f"{name}_unseen"] = {**rows[name], "unseen_lengths": spec["lengths"]}
    for name, count in spec.get("seeds", {}).items():
        rows |= {f"{name}_seed{seed}": {**rows[name], "seed": seed} for seed in range(2, count + 1)}
    return rows


def of_seeds(spec: dict, name: str) -> list[str]:
    """Return the names of a row with each of its seeds."""
    return [name, *(f"{name}_seed{seed}" for seed in range(2, spec.get("seeds", {}).get(name, 1) + 1))]


def best_seed(spec: dict, results: dict[str, dict], name: str) -> str:
    """Return the name of a row with the seed that is best by BLEU on the validation rows (Oka et al. 2020, 4.1)."""
    found = [seed for seed in of_seeds(spec, name) if seed in results]
    return max(found, key=lambda seed: results[seed]["validation"]["bleu"]) if len(found) > 1 else found[0]


def compare_systems(spec: dict, folders: dict[str, str], out: Path) -> TranslationTables:
    """
    Return Tables 1 to 3 of Oka et al. 2020; significance is tested against the first plain model.

    Args:
        folders (`dict[str, str]`): Row -> folder in `out` of the outputs that stand for it.
    """
    options = spec["options"]
    entries = []
    for name, folder in folders.items():
        for way in spec["lengths"]:
            if (file := out / folder / f"outputs_{way}.jsonl").is_file():
                entries.append(f"{name}={file}" if way == "free" else f"{name}:{way}={file}")
    columns = {"output_column": "output", "reference_column": "target"}
    tokenizer = tokenizer_of(out / next(iter(folders.values())))
    systems, references, lengths = load_systems(entries, **columns, unit=options["length_unit"], tokenizer=tokenizer)
    how = {"unit": options["length_unit"], "bleu_tokenizer": options["bleu_tokenizer"]}
    baseline = next((s.name for s in systems if s.how is None), None) if len(systems) > 1 else None
    return translation_tables(systems, references, lengths, baseline=baseline, **how)


def figure(values: Sequence[float | None]) -> str:
    """Return one figure of a row, or of several seeds the mean and their standard deviation."""
    known = [value for value in values if value is not None]
    text = number(mean(known) if known else None, 3 if not known or mean(known) < 100 else 1)
    return text if len(known) < 2 else f"{text} ± {number(stdev(known), 3)}"


def figures_table(title: str, measures: list[str], found: dict[str, list[dict]], spec: dict) -> list[str]:
    """Return a table of the rows `found`, with the results of each one's seeds, a column for each of the lengths."""
    columns = [str(way) for way in spec["lengths"]]
    lines = [f"## {title}", "", "| row | " + " | ".join(columns) + " |", "|" + "---|" * (1 + len(columns))]
    for name, seeds in found.items():
        cells = []
        for i, column in enumerate(columns):
            figures = [row["figures"][column] for row in seeds if column in row["figures"]]
            if not figures:  # a plain model has figures only in the column `free`, which the others lack
                cells.append("")
                continue
            ours = " / ".join(figure([each[m] for each in figures]) for m in measures)
            paper = [spec.get("paper", {}).get(name, {}).get(m, [])[i : i + 1] for m in measures]
            theirs = " / ".join(str(p[0]) for p in paper if p)
            cells.append(f"{ours} ({theirs})" if theirs else ours)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def validation_table(best: dict[str, str], found: dict[str, list[dict]]) -> list[str]:
    """Return BLEU and loss on the validation rows, of the best seed and of all, where the rows were validated."""
    lines = ["## The best seed and step on the validation rows", ""]
    lines += ["| row | best | step | BLEU | BLEU of all seeds | loss | loss of all seeds |", "|" + "---|" * 7]
    validated = [name for name in best if all(row.get("validation") for row in found[name])]
    for name in validated:
        all_seeds = [row["validation"] for row in found[name]]
        own = next(row["validation"] for row in found[name] if row["row"] == best[name])
        bleu, loss = ((number(own[m], 3), figure([each[m] for each in all_seeds])) for m in ("bleu", "loss"))
        lines.append(f"| {name} | {best[name]} of {len(all_seeds)} | {own['step']} | {' | '.join((*bleu, *loss))} |")
    return [*lines, ""] if validated else []


def render(spec: dict, results: dict[str, dict], out: Path) -> str:
    """Render the results so far as Markdown, with the paper's figures in brackets."""
    lines = [f"# {spec['title']}", "", "In brackets: the paper's figure, on its own data."]
    lines += ["After ±: the standard deviation over the seeds of a row, of which the table then has the mean.", ""]
    rows = rows_of(spec)
    more = {seed for name in rows for seed in of_seeds(spec, name)[1:]}
    found = {name: [results[seed] for seed in of_seeds(spec, name) if seed in results] for name in rows}
    known = [name for name in rows if found[name] and name not in more]
    if "predictor" in spec:
        best = {name: best_seed(spec, results, name) for name in known}
        one, several = ({name: [results[seed]] for name, seed in best.items()}, {name: found[name] for name in known})
        lines += figures_table(TRANSLATION, TRANSLATION_MEASURES, one, spec)
        if "seeds" in spec:  # the paper only has the best seed
            title = f"Mean of all seeds: {TRANSLATION}"
            lines += figures_table(title, TRANSLATION_MEASURES, several, {**spec, "paper": {}})
        lines += validation_table(best, found)
    else:
        for title, measures in HEADLINES:
            lines += figures_table(title, measures, {name: found[name] for name in known}, spec)
    costs = [(name, found[name]) for name in known if "parameters" in found[name][0]]
    if costs:
        lines += ["## Loss on the test rows, and cost", "", "| row | seeds | loss | parameters, millions | minutes |"]
        lines.append("|---|---|---|---|---|")
        for name, seeds in costs:
            loss, minutes = (figure([row[measure] for row in seeds]) for measure in ("loss", "minutes"))
            lines.append(f"| {name} | {len(seeds)} | {loss} | {seeds[0]['parameters'] / 1e6:.2f} | {minutes} |")
        lines.append("")
    if "predictor" in spec and known:
        lines.append(compare_systems(spec, best, out).markdown())
    return "\n".join(lines)


def load_results(path: Path) -> dict[str, dict]:
    """Load `results.jsonl`, row -> results; remove an incomplete last line, whose row runs again."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else [""]
    if lines.pop():
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {result["row"]: result for result in map(json.loads, lines)}


def write_run(folder: Path, options: dict) -> Path:
    """Write the YAML of one training."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    return folder / "run.yaml"


def train(folder: Path, options: dict, lengths: list[int]) -> dict[str, float]:
    """Train a row and generate at each length; return the figures of the training."""
    run = {name: value for name, value in options.items() if name != "start"}
    run |= {"output_dir": str(folder), "test_lengths": lengths}
    if "start" in options:
        run["model_name_or_path"] = str(folder.parent / options["start"])
    recipe = golc if options.get("objective") == "golc" else train_seq2seq
    return recipe.main([str(write_run(folder, run))])


def written_at(folder: Path, length: int | None) -> list[dict]:
    """
    Return the outputs of a row at a length, or at its references' lengths, for each test row that was not dropped.
    """
    file = folder / ("test_outputs.jsonl" if length is None else f"test_{length}_outputs.jsonl")
    return [row for row in Rows(str(file)).values if row["length"] is not None]


def rows_for(length: int, spec: dict, references: list[int]) -> list[int]:
    """
    Return which test rows stand for a length, by the `rows` of the table's protocol.

    Args:
        references (`list[int]`): The length of each reference. `reference_length` takes those that are longer than the
            table's length before this one, and at most as long as this one; `all`, the default, takes each.
    """
    if spec.get("protocol", {}).get("rows", "all") == "all":
        return list(range(len(references)))
    below = max((other for other in spec["lengths"] if other < length), default=0)
    return [i for i, own in enumerate(references) if below < own <= length]


def measure(folder: Path, length: int, spec: dict, options: dict, tokenizer) -> dict[str, float | None]:
    """
    Measure a row's outputs at a length: return the figures by the paper's protocol, `None` without a protocol, and the
    figures of all test rows.
    """
    written = written_at(folder, length)
    outputs, references, produced = ([row[name] for row in written] for name in ("output", "reference", "length"))
    unit = options.get("rouge_unit", "word")
    figures: dict[str, float | None] = {**length_metrics(produced, [length] * len(written))}
    figures |= {**rouge_metrics(outputs, references, unit=unit), "variance_all": figures["variance"]}
    figures["distinct"] = len(set(outputs)) / len(outputs)
    counted = count_texts(tokenizer, references, options.get("length_unit", "character"), target=True)
    own = rows_for(length, spec, counted)
    figures |= dict.fromkeys(("variance", *RECALL)) | {"rows": len(own)}
    if own:
        cut = spec.get("protocol", {}).get("cut")
        texts = [outputs[i] if cut is None else lead(outputs[i], length, cut, tokenizer) for i in own]
        rouge = rouge_metrics(texts, [references[i] for i in own], unit=unit)
        figures |= {name: rouge[name] for name in RECALL}
        figures["variance"] = length_metrics([produced[i] for i in own], [length] * len(own))["variance"]
    return {name: figures[name] for name in MEASURES}


def cost(folder: Path) -> dict[str, float]:
    """Return the number of saved weights of a trained row, and the minutes of its steps, with interrupted runs."""
    weights = load_file(folder / "model.safetensors").values()
    known = json.loads((folder / "train_results.json").read_text(encoding="utf-8"))
    steps = trained_steps(checkpoints_of(folder)[-1])
    parameters = sum(weight.numel() for weight in weights if weight.is_floating_point())
    return {"parameters": parameters, "minutes": known["train_seconds_per_step"] * steps / 60}


def sources_of(row: dict) -> list[str]:
    """
    Return the trained rows that a row needs: those that it decodes with, or the one that its training starts from.
    """
    of = row.get("of", row.get("start", []))
    return [of] if isinstance(of, str) else list(of)


def search_options(options: dict) -> dict[str, Any]:
    """Return the pipeline's options with which the tests of a row were written."""
    how = {"num_beams": options["generation_num_beams"], "batch_size": options["per_device_eval_batch_size"]}
    how |= {"early_stopping": True} if options.get("generation_early_stopping") else {}
    return how | {"length_unit": options.get("length_unit", "character")}  # a plain model has no unit


def decode(folders: list[Path], row: dict, options: dict, lengths: list[int], out: Path) -> None:
    """
    Generate with trained models in another way, into `test_<length>_outputs.jsonl` in a folder `out`.

    Args:
        folders (`list[Path]`): Folders of the trained rows; several are an ensemble.
        row (`dict`): `constraint`, `"max"` or `"exact"` (with `length_tolerance`, the window around the length) while
            it writes, or `"cut"` for the text afterwards; `rerank`, candidates to choose among by words of the source.
    """
    rows = written_at(folders[0], None)
    sources = [written["source"] for written in rows]
    loaded = [generate.load(str(folder)) for folder in folders]
    model = loaded[0][0] if len(loaded) == 1 else LengthControlEnsemble([model for model, _ in loaded])
    tokenizer = loaded[0][1]
    write: Any = LengthControlledGenerationPipeline(model=model, tokenizer=tokenizer, device=model.device)
    given, how = search_options(options), row.get("constraint")
    unit = given["length_unit"]
    given |= {name: row[name] for name in ("rerank", "length_tolerance") if name in row}
    free = write(sources, length_constraint=None, **given) if how == "cut" else []
    out.mkdir(parents=True, exist_ok=True)
    for length in lengths:
        if how == "cut":
            texts = [lead(written["generated_text"], length, unit, tokenizer) for written in free]
        else:
            found = write(sources, length=length, length_constraint=how, **given)
            texts = [written["generated_text"] for written in found]
        produced = count_texts(tokenizer, texts, unit, target=True)
        with (out / f"test_{length}_outputs.jsonl").open("w", encoding="utf-8") as file:
            for old, output, units in zip(rows, texts, produced, strict=True):
                line = {**old, "requested": length, "output": output, "length": units}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def validation_of(folder: Path) -> dict[str, float] | None:
    """Return step, BLEU and loss on the validation rows of the checkpoint that a row kept as its best, if any."""
    state = state_of(checkpoints_of(folder)[-1])
    kept = [entry for entry in state.log_history if "eval_bleu" in entry and entry["step"] == state.best_global_step]
    return {"step": kept[0]["step"], "bleu": kept[0]["eval_bleu"], "loss": kept[0]["eval_loss"]} if kept else None


def check_validated(options: dict) -> None:
    """Raise `ValueError` if a training keeps no checkpoint for its BLEU on the validation rows."""
    steps, every = (options.get(name) or 0 for name in ("max_steps", "eval_steps"))
    best = options.get("load_best_model_at_end") and options.get("metric_for_best_model") == "bleu"
    if not best or 0 < steps < every:
        names = ("load_best_model_at_end", "metric_for_best_model", "max_steps", "eval_steps")
        got = " ".join(f"{name}={options.get(name)}" for name in names)
        raise ValueError(
            "the best seed is that with the best BLEU on the validation rows: set load_best_model_at_end=true, "
            f"metric_for_best_model=bleu, and eval_steps and save_steps to at most max_steps; got {got}"
        )


def translate(out: Path, name: str, options: dict, spec: dict) -> dict[str, Any]:
    """Train a row of a translation table, and generate with each source of the length; return the results."""
    if "seeds" in spec:
        check_validated(options)
    folder = out / name
    loss = train(folder, options, [])["test_loss"]
    rows = Rows(str(folder / "test.jsonl"))
    sources, references = rows.texts("source"), rows.texts("target")
    how = search_options(options) | spec.get("protocol", {}).get("search", {})
    model, tokenizer = generate.load(str(folder))
    controlled = options["length_encoding"] != "none" or "length_tokens" in options
    ways = [way for way in spec["lengths"] if (way != "free") == controlled]
    if "predict" in ways and not (out / "predictor" / "predictor_table.json").is_file():
        shared = ("train_file", "validation_file", "test_file", "use_cpu", "bf16")
        data = {option: options[option] for option in shared if option in options}
        run = {**spec["predictor"], **data, "target_tokenizer": str(folder), "output_dir": str(out / "predictor")}
        train_length_predictor.main([str(write_run(out / "predictor", run))])
    gives: dict[str, dict[str, Any]] = {
        "predict": {"predictor": str(out / "predictor")},
        "reference": {"references": references},
    }
    for way in ways:
        lengths = [None] * len(sources) if way == "free" else way
        written = generate.generate(model, tokenizer, sources, lengths, **how, **gives.get(way, {}))
        with (folder / f"outputs_{way}.jsonl").open("w", encoding="utf-8") as file:
            for row, target in zip(written, references, strict=True):
                file.write(json.dumps(row | {"target": target}, ensure_ascii=False) + "\n")
    systems = compare_systems({**spec, "options": options}, {name: name}, out).systems
    figures = {way: system.figures for way, system in zip(ways, systems, strict=True)}
    return {"figures": figures, "validation": validation_of(folder), "loss": loss, **cost(folder)}


def parse(argv=None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="YAML of a table, or the name of one that `lenctrl recipes` lists")
    parser.add_argument("--train_file", required=True, help="rows of all splits; see the table's options")
    parser.add_argument("--output_dir", help="folder of the rows, results.jsonl and tables.md")
    parser.add_argument("--rows", nargs="+", help="run these alone, with each of their seeds; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", help="run the rows with these seeds alone; all by default")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="options for every row's training")
    args = parser.parse_args(argv)
    if not Path(args.train_file).is_file():
        raise FileNotFoundError(f"there is no data file {args.train_file}; each row needs it")
    return args


def override(spec: dict, items: list[str]) -> None:
    """Set the options of `--set` in a table."""
    for item in items:
        name, equals, value = item.partition("=")
        part, _, name = name.rpartition(".")
        if not equals or part not in ("", *(["predictor"] if "predictor" in spec else [])):
            raise ValueError(f"--set takes NAME=VALUE, or predictor.NAME=VALUE in a translation table, got {item!r}")
        spec[part or "options"][name] = yaml.safe_load(value)


def in_order(rows: dict[str, dict], chosen: list[str]) -> list[str]:
    """Return the chosen rows, each after those that it needs."""
    found: list[str] = []
    for name in chosen:
        for other in [*in_order(rows, sources_of(rows[name])), name]:
            found += [] if other in found else [other]
    return found


def last_seed(rows: dict[str, dict], name: str) -> int:
    """Return the seed of a row, or the highest of those that it needs."""
    return max([rows[name].get("seed", 1), *(last_seed(rows, other) for other in sources_of(rows[name]))])


def rows_to_run(spec: dict, chosen: list[str] | None, seeds: list[int] | None) -> list[str]:
    """Return the names of the chosen rows and of those that they need, in order: seed by seed."""
    rows = rows_of(spec)
    unknown = [name for name in chosen or [] if name not in rows]
    if unknown:
        raise ValueError(f"the table has no rows {', '.join(unknown)}, only {', '.join(rows)}")
    names = [seed for name in chosen or rows for seed in of_seeds(spec, name)]
    found = [name for name in names if seeds is None or last_seed(rows, name) in seeds]
    if not found:
        raise ValueError(f"none of the rows {', '.join(names)} has a seed of {seeds}; leave --seeds out")
    return sorted(in_order(rows, found), key=lambda name: last_seed(rows, name))


def run_row(name: str, spec: dict, options: dict, out: Path) -> dict[str, Any]:
    """Train a row, or decode with it, and return its results."""
    lengths, costs = spec["lengths"], {}
    if "predictor" in spec:
        return translate(out, name, options, spec)
    if "of" in options:
        folders = [out / of for of in sources_of(options)]
        decode(folders, options, options, lengths, out / name)
    else:
        costs = {"loss": train(out / name, options, lengths)["test_loss"], **cost(out / name)}
        folders = [out / name]
    tokenizer = tokenizer_of(folders[0])
    return {"figures": {str(n): measure(out / name, n, spec, options, tokenizer) for n in lengths}, **costs}


def main(argv=None) -> None:
    """Run the recipe."""
    args = parse(argv)
    table = find_table(args.table)
    spec = load_table(table)
    rows, names = rows_of(spec), rows_to_run(spec, args.rows, args.seeds)
    out = Path(args.output_dir or f"runs/reproduce/{table.stem}")
    out.mkdir(parents=True, exist_ok=True)
    spec["options"]["train_file"] = args.train_file
    override(spec, args.set)
    for name in names:
        results = load_results(out / "results.jsonl")
        options = {**spec["options"], **rows[name]}
        # the paths of data may change, but not their content
        recorded = {k: identity(v) if v and k.endswith("_file") else v for k, v in options.items()}
        recorded |= {"protocol": spec["protocol"]} if "protocol" in spec else {}
        if name in results:
            if results[name]["config"] != recorded:
                raise ValueError(
                    f"{out / 'results.jsonl'} holds {name!r} with another configuration; name another --output_dir, "
                    "or take the line out to run it again"
                )
            continue
        line = {"row": name, "config": recorded, **run_row(name, spec, options, out)}
        with (out / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        (out / "tables.md").write_text(render(spec, load_results(out / "results.jsonl"), out), encoding="utf-8")
    tables = render(spec, load_results(out / "results.jsonl"), out)
    (out / "tables.md").write_text(tables, encoding="utf-8")
    print(tables)


if __name__ == "__main__":
    main()
