"""Drive the plugin of vLLM with random batches, by vLLM's own classes, on a CPU; needs vllm, not its engine.

    python tests/tools/vllm_batches.py --batches 10000
    python tests/tools/vllm_batches.py --cost

V1: `InputBatch` takes, moves and drops requests, `Sampler` samples. V2: its loader makes the plugin, and its
`LogitsContext` lists the rows. The buffers of its `RequestState` need CUDA, so plain tensors stand in for them, and
the acceptance of drafts is drawn here. The mask of each row is compared with the Hugging Face processor, and each text
is counted as vLLM's detokenizer makes it.
"""

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast
from vllm.utils import torch_utils


# ruff: noqa: E402, I001
torch_utils.PIN_MEMORY = False  # which needs an accelerator; other modules of vLLM take the value from there
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch, random_sample
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, build_custom_logits_processors
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from hf_lenctrl import LengthConstraintLogitsProcessor, UnitTable, count_units
from hf_lenctrl.engines.vllm import LengthConstraint


NAME = "hf_lenctrl.engines.vllm:LengthConstraint"
TEXT = "It cost 3 €, naïve — 日本 語 and 😀, said the cat.  A word\n\ntwo words; the cat sat on the mat again."
SLOTS, LONGEST, DRAFTS = 8, 400, 3
UNITS = ("token", "character", "word", "byte", "width")


def make_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of byte-level BPE, or of SentencePiece with byte fallback, as Llama 2 has it."""
    if kind == "byte-level":
        backend = tokenizers.Tokenizer(tokenizers.models.BPE())
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=420, special_tokens=["<s>", "</s>", "<|x|>"], initial_alphabet=alphabet
        )
        backend.train_from_iterator([TEXT] * 3, trainer)
    else:
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcdehinorstuw.,é日"]
        pieces += ["▁a", "▁cat", "▁the", "at", "ing", "▁▁", "word"]
        backend = tokenizers.Tokenizer(
            tokenizers.models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
        )
        backend.normalizer = tokenizers.normalizers.Sequence(
            [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
        )
        d = tokenizers.decoders
        backend.decoder = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
        backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def config_of(folder: str, vocab_size: int, **additional) -> SimpleNamespace:
    """What the plugin and vLLM's loaders read of a `VllmConfig`."""
    model = SimpleNamespace(
        skip_tokenizer_init=False, tokenizer=folder, model=folder, runner_type="generate", tokenizer_mode="auto",
        tokenizer_revision=None, trust_remote_code=False, max_model_len=LONGEST, get_vocab_size=lambda: vocab_size,
        logits_processors=[NAME],
    )  # fmt: skip
    scheduler = SimpleNamespace(max_num_seqs=SLOTS)
    return SimpleNamespace(
        model_config=model, additional_config=additional, speculative_config=None, scheduler_config=scheduler,
        structured_outputs_config=SimpleNamespace(reasoning_parser="", enable_in_reasoning=False),
    )  # fmt: skip


class Bench:
    """A tokenizer, its tables, the requests that are drawn, and what was found of them."""

    def __init__(self, kind: str, seed: int):
        self.draw, self.kind = random.Random(seed), kind
        torch.manual_seed(seed)
        self.folder = tempfile.mkdtemp()
        self.tokenizer = make_tokenizer(kind)
        self.tokenizer.save_pretrained(self.folder)
        Path(self.folder, "config.json").write_text('{"model_type": "llama"}')  # vLLM asks for one
        self.eos = self.tokenizer.eos_token_id
        self.vocab_size = len(self.tokenizer) + 5
        self.tables = {u: UnitTable.from_tokenizer(self.tokenizer, u).padded(self.vocab_size) for u in UNITS}
        self.config = config_of(self.folder, self.vocab_size)
        self.found: Counter = Counter()
        self.made = 0

    def request(self) -> SimpleNamespace:
        """A request as a server makes it, some without a length, and the Hugging Face processor for it."""
        draw = self.draw
        self.made += 1
        asked: dict = {"length": draw.randint(1, 30), "length_unit": draw.choice(UNITS)}
        asked["length_constraint"] = draw.choice(["max", "exact"])
        if asked["length_constraint"] == "exact" and draw.random() < 0.4:
            asked["length_tolerance"] = draw.choice([2, 0.2, [0, 3], [0.1, 2]])
        prompt = [0] if draw.random() < 0.3 else self.tokenizer.encode("the cat sat", add_special_tokens=False)
        prompt, most = prompt * draw.randint(1, 3), draw.randint(70, 120)
        if asked["length_constraint"] == "max" and draw.random() < 0.3:
            most = draw.randint(5, 20)
        extra = asked if draw.random() < 0.85 else None
        stop = [self.eos, 2] if draw.random() < 0.2 and self.kind == "byte-level" else self.eos
        params = SamplingParams(temperature=1.0, max_tokens=most, extra_args=extra)
        LengthConstraint.validate_params(params)
        params.update_from_generation_config({"eos_token_id": stop}, self.eos)
        request = SimpleNamespace(
            name=str(self.made), params=params, prompt=prompt, out=[], asked=extra, stops=params.all_stop_token_ids
        )
        if extra:
            tolerance = asked.get("length_tolerance")
            request.reference = LengthConstraintLogitsProcessor(
                self.tables[asked["length_unit"]], asked["length"], asked["length_constraint"],
                tolerance=tuple(tolerance) if isinstance(tolerance, list) else tolerance,
                eos_token_id=sorted(request.stops), max_length=len(prompt) + most, prompt_length=len(prompt),
            )  # fmt: skip
            request.comparable = self.kind == "byte-level" or set(prompt) <= {0, 1, 2}
        return request

    def logits(self, rows: int) -> torch.Tensor:
        """Random logits; EOS is likely now and then."""
        logits = 3 * torch.randn(rows, self.vocab_size)
        logits[:, self.eos] += 6 * self.draw.random()
        return logits

    def compare(self, request, out: list[int], before: torch.Tensor, after: torch.Tensor) -> None:
        """One row beside the Hugging Face processor, and untouched where no length is asked for."""
        self.found["rows"] += 1
        if request.asked is None:
            self.found["rows without a length"] += 1
            self.found["MASKS THAT DIFFER"] += not torch.equal(before, after)
        elif request.comparable:
            self.found["masks compared"] += 1
            expected = request.reference(torch.tensor([request.prompt + out]), before[None])[0]
            self.found["MASKS THAT DIFFER"] += not torch.equal(expected, after)

    def end(self, request) -> None:
        """Count the text that a client gets."""
        if request.asked is None:
            return
        shape = SimpleNamespace(sampling_params=request.params, prompt_token_ids=request.prompt, request_id="")
        detokenizer = IncrementalDetokenizer.from_new_request(self.tokenizer, shape)
        stopped = request.out[-1] in request.stops
        detokenizer.update(list(request.out), stopped)
        text, unit = detokenizer.get_next_output_text(finished=True, delta=False), request.asked["length_unit"]
        special = [i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special]
        tokens = [token for token in request.out if token not in special]
        length = len(tokens) if unit == "token" else count_units(text, unit)
        low, high = int(request.reference.low), int(request.reference.high)
        exact = request.asked["length_constraint"] == "exact"
        self.found["texts"] += 1
        self.found["texts that max_tokens cut"] += not stopped
        whole = unit == "token" or "\ufffd" not in text
        self.found["CONSTRAINTS BROKEN"] += not (low if exact else 0) <= length <= high or not whole

    def is_done(self, request) -> bool:
        """Whether vLLM would end a request."""
        return request.out[-1] in request.stops or len(request.out) >= request.params.max_tokens


def run_v1(bench: Bench, batches: int) -> None:
    """Requests in an `InputBatch`, sampled by `Sampler`."""
    batch = InputBatch(
        max_num_reqs=SLOTS, max_model_len=LONGEST, max_num_batched_tokens=LONGEST, device=torch.device("cpu"),
        vocab_size=bench.vocab_size, block_sizes=[16], max_num_blocks_per_req=[LONGEST // 16 + 1], num_spec_tokens=0,
        logitsprocs=build_logitsprocs(bench.config, torch.device("cpu"), False, False, (NAME,)),
        logitsprocs_need_output_token_ids=True,
    )  # fmt: skip
    sampler, live = Sampler(), {}
    (plugin,) = [p for p in batch.logitsprocs.all if "hf_lenctrl" in type(p).__module__][-1:]  # entry points are first
    for _ in range(batches):
        for request in [r for r in live.values() if r.out and bench.is_done(r)]:
            bench.end(live.pop(request.name))
            batch.remove_request(request.name)
        resting = [r for r in live.values() if bench.draw.random() < 0.03]  # preempted: they come back with their text
        for request in resting:
            batch.remove_request(request.name)
            bench.found["preempted"] += 1
        new = [bench.request() for _ in range(bench.draw.randint(0, SLOTS - len(live)))] if live else [bench.request()]
        for request in [*resting, *new]:
            state = CachedRequestState(
                req_id=request.name, prompt_token_ids=request.prompt, mm_features=[], sampling_params=request.params,
                generator=None, block_ids=([0],), num_computed_tokens=0, output_token_ids=request.out,
            )  # fmt: skip
            live[request.name] = request
            batch.add_request(state)
        batch.condense()
        if batch.num_reqs > 1 and bench.draw.random() < 0.3:
            batch.swap_states(*bench.draw.sample(range(batch.num_reqs), 2))
            bench.found["swapped"] += 1
        batch.refresh_metadata()
        logits = bench.logits(batch.num_reqs)
        after = plugin.apply(logits.clone())
        for i, name in enumerate(batch.req_ids):
            bench.compare(live[name], live[name].out, logits[i], after[i])
        sampled = sampler(logits.clone(), batch.sampling_metadata).sampled_token_ids.squeeze(1).tolist()
        for name, token in zip(batch.req_ids, sampled, strict=True):
            live[name].out.append(token)


def run_v2(bench: Bench, batches: int) -> None:
    """Requests in slots, several rows each: drafts that are accepted and rejected."""
    buffer = torch.zeros(SLOTS, LONGEST, dtype=torch.int32)
    lengths = {name: SimpleNamespace(np=np.zeros(SLOTS, np.int32)) for name in ("prompt_len", "prefill_len")}
    total = SimpleNamespace(gpu=torch.zeros(SLOTS, dtype=torch.int32))
    states = SimpleNamespace(
        device=torch.device("cpu"), max_num_reqs=SLOTS, vocab_size=bench.vocab_size,
        all_token_ids=SimpleNamespace(gpu=buffer), total_len=total, **lengths,
    )  # fmt: skip
    (plugin,) = build_custom_logits_processors(bench.config, states, False, (NAME,))[-1:]
    live: dict[int, SimpleNamespace] = {}
    free, waiting = list(range(SLOTS)), []
    for _ in range(batches):
        for slot, request in list(live.items()):
            done = request.out and bench.is_done(request)
            if done or bench.draw.random() < 0.03:  # ended or preempted: the slot is free
                bench.end(request) if done else waiting.append(request)
                bench.found["preempted"] += not done
                del live[slot]
                free.append(slot)
        bench.draw.shuffle(free)
        for _ in range(bench.draw.randint(0 if live else 1, len(free)) if free else 0):
            slot, request = free.pop(), waiting.pop() if waiting else bench.request()
            ids = request.prompt + request.out
            buffer[slot] = torch.randint(bench.vocab_size, (LONGEST,))  # what an earlier request left there
            buffer[slot, : len(ids)] = torch.tensor(ids)
            lengths["prompt_len"].np[slot], lengths["prefill_len"].np[slot] = len(request.prompt), len(ids)
            bench.found["DECLINED WRONGLY"] += plugin.add_request(slot, request.params) != bool(request.asked)
            live[slot], request.read = request, bench.draw.choice([0, 0, 1, 2])  # a prompt in several chunks
        plugin.apply_staged_writes()
        order = bench.draw.sample(sorted(live), bench.draw.randint(1, len(live)))  # the others are not scheduled
        rows = []  # slot, place, position, token fed, text so far or None in a prompt
        for slot in order:
            request, ids = live[slot], live[slot].prompt + live[slot].out
            if request.read:
                position = max(len(ids) - 1 - request.read, 0)
                rows.append((slot, 0, position, ids[position], None))
                continue
            drafts = [bench.draw.randrange(bench.vocab_size) for _ in range(bench.draw.randint(0, DRAFTS))]
            drafts = [bench.eos if bench.draw.random() < 0.1 else token for token in drafts]
            for place, token in enumerate([ids[-1], *drafts]):
                rows.append((slot, place, len(ids) - 1 + place, token, request.out + drafts[:place]))
        slots, places, positions, tokens, texts = zip(*rows, strict=True)
        context = LogitsContext(
            expanded_idx_mapping=torch.tensor(slots, dtype=torch.int32), idx_mapping=torch.tensor(order),
            idx_mapping_np=np.array(order), expanded_local_pos=torch.tensor(places, dtype=torch.int32),
            input_ids=torch.tensor(tokens, dtype=torch.int32), pos=torch.tensor(positions),
            seq_lens_upper_bound_np=np.array([0] * len(order)),
        )  # fmt: skip
        logits = bench.logits(len(rows))
        after = plugin.apply(logits.clone(), context)
        accept(bench, live, buffer, rows, logits, after)


def accept(bench: Bench, live: dict, buffer: torch.Tensor, rows: list, logits, after) -> None:
    """Compare the rows up to the first draft that is rejected, accept those before it, and append one token."""
    ended: set[int] = set()
    for i, (slot, _, _, _, text) in enumerate(rows):
        request = live[slot]
        if text is None:
            request.read -= 1
        if text is None or slot in ended:
            continue
        bench.compare(request, text, logits[i], after[i])
        chances = after[i].softmax(dim=-1)
        drafted = i + 1 < len(rows) and rows[i + 1][0] == slot
        draft = rows[i + 1][3] if drafted else -1
        if drafted and float(chances[draft]) > 0 and bench.draw.random() < 0.6:  # any that the target model may write
            token = draft
            bench.found["drafts accepted"] += 1
        else:
            bench.found["drafts rejected"] += drafted
            token = int(chances.multinomial(1))
            ended.add(slot)
        request.out.append(token)
        buffer[slot, len(request.prompt) + len(request.out) - 1] = token
        if bench.is_done(request):
            ended.add(slot)


def big_tokenizer(entries: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with so many entries, of 1 to 12 characters."""
    draw, alphabet = random.Random(0), sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = dict.fromkeys([*alphabet, "</s>"])
    while len(vocabulary) < entries:
        word = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=min(12, 1 + int(draw.expovariate(0.2)))))
        vocabulary[draw.choice(["Ġ", ""]) + word] = None
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(vocabulary)}, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def best(call, prepare, rounds: int) -> float:
    """The shortest of several runs on one thread, in milliseconds of its own time."""
    times = []
    for _ in range(rounds):
        prepared = prepare()
        start = time.thread_time()
        call(prepared)
        times.append(1000 * (time.thread_time() - start))
    return min(times)


def cost(rows_of: list[int], entries_of: list[int]) -> None:
    """Time of a step beside vLLM's own top-k, top-p, softmax and draw on a CPU."""
    print("| vocabulary | rows | constraint | vLLM's sampler | constraint | share |\n|---|---|---|---|---|---|")
    for entries in entries_of:
        tokenizer, folder = big_tokenizer(entries), tempfile.mkdtemp()
        tokenizer.save_pretrained(folder)
        start = time.perf_counter()
        config = config_of(folder, entries, length_units=["character"])
        logitsprocs = build_logitsprocs(config, torch.device("cpu"), False, False, (NAME,))
        made = time.perf_counter() - start
        (plugin,) = [p for p in logitsprocs.all if "hf_lenctrl" in type(p).__module__][-1:]
        for rows in rows_of:
            for constraint in ("max", "exact"):
                times = step_times(plugin, tokenizer, rows, entries, constraint)
                share = f"{times[1] / times[0]:.1%}"
                print(
                    f"| {entries} | {rows} | {constraint} | {times[0]:.1f} ms | {times[1]:.2f} ms | {share} |",
                    flush=True,
                )
        print(f"table of {entries} entries: {made:.1f} s")


def step_times(plugin, tokenizer, rows: int, entries: int, constraint: str) -> tuple[float, float]:
    """Milliseconds of the sampler and of the constraint, for texts at different distances from their length."""
    draw = random.Random(0)
    plugin.requests.clear()
    for i in range(rows):
        extra = {"length": draw.randint(40, 200), "length_unit": "character", "length_constraint": constraint}
        params = SamplingParams(max_tokens=300, extra_args=extra)
        params.update_from_generation_config({}, tokenizer.eos_token_id)
        letters = [j for j in range(entries) if j < 256][65:90]
        plugin.requests[i] = plugin._listed_request(params, [], draw.choices(letters, k=draw.randint(0, 39)))
    logits = 3 * torch.randn(rows, entries)
    k, p = torch.full((rows,), 50), torch.full((rows,), 0.9)

    def sample(logits):
        random_sample(apply_top_k_top_p_pytorch(logits, k, p).softmax(dim=-1, dtype=torch.float32), {})

    def step():
        for request in plugin.requests.values():
            request.tokens.append(65)  # one token more
        return logits.clone()

    return best(sample, logits.clone, 5), best(plugin.apply, step, 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10_000, help="steps, over both interfaces and tokenizers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", action="store_true", help="time a step instead")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--entries", type=int, nargs="+", default=[32_000, 150_000])
    options = parser.parse_args()
    if options.cost:
        return cost(options.rows, options.entries)
    for kind in ("byte-level", "sentencepiece"):
        for run in (run_v1, run_v2):
            bench = Bench(kind, options.seed)
            run(bench, options.batches // 4)
            found = {"batches": options.batches // 4, "requests": bench.made, **dict(sorted(bench.found.items()))}
            print(f"{run.__name__} {kind}: {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
