"""Judge a model under the constraint of each prompt's length, by LIFEBench or IFEval's length instructions.

    python recipes/judges/judge.py --model path/or/name --task lifebench --file docs/samples/lifebench.jsonl \\
        --lengths 16 32 64

The model generates under our constraint, in words. The words of IFEval are counted exactly. The words of LIFEBench are
counted as `zh_word`, which differs in one of 90 English sentences: `2,000` is two words of LIFEBench. The script needs
`pip install lm_eval`; lm-evaluation-harness runs the same tasks with any other model (docs/evaluate.md).
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from tqdm.auto import tqdm  # type: ignore[import-untyped]

import hf_lenctrl


CONSTRAINTS = {"equal to": "exact", "at most": "max", "less than": "max", "at least": "min"}
WORDS = hf_lenctrl.Unit(  # the words of IFEval: runs of letters, digits and "_"
    False,
    lambda inside, letter: (int(letter and not inside), letter),
    lambda character: re.match(r"\w", character) is not None,
    name="word of IFEval",
)


class LengthModel(LM):
    """A model for lm-evaluation-harness: a pipeline of this package, with the requested length of each document."""

    def __init__(self, write: hf_lenctrl.LengthControlledGenerationPipeline):
        super().__init__()
        self.write = write

    def generate_until(self, requests: list) -> list[str]:
        """Return the answer to each request."""
        return [self._answer(request) for request in tqdm(requests)]

    def _answer(self, request) -> str:
        prompt: Any = request.args[0]
        if getattr(self.write.tokenizer, "chat_template", None) is not None:
            prompt = [{"role": "user", "content": prompt}]
        options = options_of(request.doc) or {"max_new_tokens": request.args[1]["max_gen_toks"]}
        return self.write(prompt, **options)["generated_text"]

    def loglikelihood(self, requests):
        raise NotImplementedError("the tasks of recipes/judges generate")

    loglikelihood_rolling = loglikelihood


def options_of(document: dict) -> dict[str, Any]:
    """
    Return the length options for a document; an empty dictionary if it requests no number of words.

    >>> options_of({"control": "at least", "length": 16})
    {'length': 16, 'length_constraint': 'min', 'length_unit': 'zh_word'}
    >>> options = options_of({"instructions": '[["number_words", {"relation": "less than", "num_words": 20}]]'})
    >>> options["length"], options["length_constraint"], options["length_unit"].count("a well-known word")
    (19, 'max', 4)
    """
    if "control" in document:
        constraint = CONSTRAINTS[document["control"]]
        return {"length": document["length"], "length_constraint": constraint, "length_unit": "zh_word"}
    for name, given in json.loads(document["instructions"]):
        if name == "number_words":
            constraint = CONSTRAINTS[given["relation"]]
            length = given["num_words"] - (constraint == "max")
            return {"length": length, "length_constraint": constraint, "length_unit": WORDS}
    return {}


def judge(model: LM, task: str, **metadata: Any) -> dict[str, dict]:
    """Return the scores of a model in each part of a task; `metadata` has the `file` of the rows."""
    folder = str(Path(__file__).resolve().parent / "tasks")
    manager = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
    found: Any = lm_eval.simple_evaluate(model, tasks=[task], task_manager=manager, bootstrap_iters=0)
    scores = {
        name: {key.removesuffix(",none"): value for key, value in own.items() if isinstance(value, float)}
        for name, own in found["results"].items()
    }
    return {name: own for name, own in scores.items() if own}


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="folder or Hub name")
    add("--task", required=True, choices=["lifebench", "ifeval_length"], help="the benchmark")
    add("--file", required=True, help="rows of the benchmark: JSON lines in the published form")
    add("--lengths", type=int, nargs="+", help="lengths in words, for lifebench; default: 16, 32, ... 8192")
    args = parser.parse_args(argv)
    own = {} if args.lengths is None else {"lengths": args.lengths}
    print(json.dumps(judge(LengthModel(hf_lenctrl.pipeline(args.model)), args.task, file=args.file, **own), indent=1))


if __name__ == "__main__":
    main()
