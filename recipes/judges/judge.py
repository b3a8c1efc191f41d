"""Judge a model that is held to the length of each prompt, by LIFEBench or IFEval's instructions of length.

    python recipes/judges/judge.py --model path/or/name --task lifebench --file docs/samples/lifebench.jsonl \\
        --lengths 16 32 64

The model generates under our constraint, in words. lm-evaluation-harness runs the same tasks with any other model
(docs/evaluate.md). It needs `pip install lm_eval`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from tqdm.auto import tqdm  # type: ignore[import-untyped]

import hf_lenctrl


class LengthModel(LM):
    """A model of lm-evaluation-harness: a pipeline of this package, with the length that each document asks for."""

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
    Return the length options for a document; none if it asks for no number of words.

    >>> options_of({"control": "at least", "length": 16})
    {'length': 16, 'length_constraint': 'exact', 'length_tolerance': (0, 16), 'length_unit': 'word'}
    >>> options_of({"instructions": '[["number_words", {"relation": "less than", "num_words": 20}]]'})
    {'length': 19, 'length_constraint': 'max', 'length_unit': 'word'}
    """
    if "control" in document:
        control, length = document["control"], document["length"]
    else:
        wishes = [given for name, given in json.loads(document["instructions"]) if name == "number_words"]
        if not wishes:
            return {}
        less = wishes[0]["relation"] == "less than"
        control, length = ("at most", wishes[0]["num_words"] - 1) if less else ("at least", wishes[0]["num_words"])
    options: dict[str, Any] = {"length": length, "length_constraint": "max" if control == "at most" else "exact"}
    options |= {"length_tolerance": (0, length)} if control == "at least" else {}
    return {**options, "length_unit": "word"}


def judge(model: LM, task: str, **metadata: Any) -> dict[str, dict]:
    """Return the scores of a model in a task, by the names of its parts; `metadata` has the `file` of the rows."""
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
    add("--task", required=True, choices=["lifebench", "ifeval_length"], help="what judges the model")
    add("--file", required=True, help="its rows: JSON lines, as the published ones")
    add("--lengths", type=int, nargs="+", help="words, for lifebench; default: 16 to 8192, each twice the last")
    args = parser.parse_args(argv)
    own = {} if args.lengths is None else {"lengths": args.lengths}
    print(json.dumps(judge(LengthModel(hf_lenctrl.pipeline(args.model)), args.task, file=args.file, **own), indent=1))


if __name__ == "__main__":
    main()
