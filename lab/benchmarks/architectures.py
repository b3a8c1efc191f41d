"""Which causal architectures take a length: each of `AutoModelForCausalLM`, tiny and with random weights.

    python lab/benchmarks/architectures.py [--only mamba,llama] [--seconds 120]

Each is converted, trained for one step, saved, loaded, and generates answers of an exact length, with a cache and
without. Prints a Markdown table: the architectures that pass, those that conversion refuses, those that fail at a step
with the error, and those that this script could not build small. What passes with random weights may still fail at the
size of a real checkpoint.
"""

import argparse
import signal
import tempfile
import warnings
from collections import defaultdict
from typing import Any

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_lenctrl import add_length_control


# the sizes of a configuration, by the names that the libraries give them
SIZES: dict[Any, str] = {
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_attention_heads n_head "
    "n_heads num_heads num_key_value_heads decoder_attention_heads encoder_attention_heads num_experts_per_tok",
    32: "hidden_size d_model n_embd dim embedding_size embed_dim lru_width",
    48: "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim d_inner n_inner dim_ff d_ff",
    16: "moe_intermediate_size shared_expert_intermediate_size head_dim dim_head sliding_window q_lora_rank "
    "kv_lora_rank v_head_dim",
    8: "state_size rotary_dim qk_rope_head_dim qk_nope_head_dim hidden_size_per_layer_input",
    4: "num_experts num_local_experts n_routed_experts",
    1: "n_group topk_group n_shared_experts",
    128: "max_position_embeddings n_positions",
    300: "vocab_size_per_layer_input",
    0.2: "initializer_range init_std",
    0.0: "hidden_dropout attention_probs_dropout_prob hidden_dropout_prob",
}
SMALL: dict[str, Any] = {name: size for size, names in SIZES.items() for name in names.split()} | {"is_decoder": True}
OWN: dict[str, dict] = {  # what goes together only so
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "expand": 2},
    "reformer": {
        "attn_layers": ["local", "local"],
        "axial_pos_embds": False,
        "local_attn_chunk_length": 4,
        "attention_head_size": 16,
        "feed_forward_size": 48,
    },
    "mpt": {"max_seq_len": 128},
    "xlnet": {"d_head": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16, "layer_types": ["mamba", "attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "codegen": {"n_head": 4},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "rwkv": {"attention_hidden_size": 32},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "attention_hidden_size": 64, "attention_head_dim": 32},
    "gemma3n": {"intermediate_size": [48, 48], "laurel_rank": 8, "altup_num_inputs": 2},
}
# of these the first layers have no attention, whose cache knows its length
HYBRID = ["qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"]
HYBRID += ["lfm3", "kimi_linear", "bailing_hybrid", "gemma3n_text", "gemma4_unified_assistant"]
OWN = {name: {"num_hidden_layers": 4} for name in HYBRID} | OWN
PROMPTS = ["a small editor", "reads and writes images in many formats"]
LENGTHS = [7, 23]


NAMES = {"works": "works", "build": "not tried: the plain model was not built small", "convert": "refused"}


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE over a few words."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(PROMPTS * 3, vocab_size=290, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, **names)


def small_config(config_class, vocab_size: int, own: dict):
    """A configuration with the sizes that it knows, and such configurations inside."""
    default = config_class()
    sizes = SMALL | {"vocab_size": vocab_size, "decoder_vocab_size": vocab_size}
    sizes |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2} | own
    given = default.to_dict() | {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    known = {name for name, value in given.items() if not isinstance(value, list | dict)}
    fields = {name: value for name, value in sizes.items() if name in known or (name in own and name in given)}
    for name in config_class.sub_configs:
        inner = getattr(default, name, None)
        if isinstance(inner, PreTrainedConfig):
            fields[name] = small_config(type(inner), vocab_size, own)
    return config_class(**fields)


def build(architecture: str, vocab_size: int):
    """A tiny plain model."""
    torch.manual_seed(0)
    config = small_config(CONFIG_MAPPING[architecture], vocab_size, OWN.get(architecture, {}))
    config.is_encoder_decoder = False  # the decoder of BART and its kind alone
    return AutoModelForCausalLM.from_config(config).eval()


def tried(architecture: str, tokenizer) -> tuple[str, str]:
    """The step that an architecture comes to (`"works"` at the end), and the error there."""
    step, batch = "build", tokenizer(PROMPTS, return_tensors="pt", padding=True, pad_to_multiple_of=4)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, :2] = -100
    try:
        plain = build(architecture, len(tokenizer))
        plain.train()(**batch, labels=labels).loss.backward()
        plain.eval().zero_grad()
        plain.generate(**batch, max_new_tokens=3, do_sample=False)
        step = "convert"
        model = add_length_control(plain, tokenizer=tokenizer, length_unit="character")
        step = "train"
        model.train()
        loss = model(**batch, labels=labels).loss
        loss.backward()
        if not model.length_projection.weight.grad.abs().sum() > 0:
            raise ValueError("the length projection gets no gradient")
        torch.nn.init.normal_(model.length_projection.weight, std=0.3)
        model.eval()
        step = "generate"
        options = {"length": LENGTHS, "length_constraint": "exact", "do_sample": False}
        for cached in (True, False):
            out = model.generate(**batch, **options, use_cache=cached)
            counted = model.unit_table.count(out[:, batch["input_ids"].shape[1] :]).tolist()
            if counted != LENGTHS:
                raise ValueError(f"lengths {counted}, not {LENGTHS}")
        step = "save and load"
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = AutoModelForCausalLM.from_pretrained(folder)
            with torch.no_grad():
                if not torch.allclose(again(**batch, length=5).logits, model(**batch, length=5).logits, atol=1e-5):
                    raise ValueError("other logits after loading")
    except Exception as error:
        return step, f"{type(error).__name__}: {' '.join(str(error).split())[:110]}"
    return "works", ""


def _too_long(*_):
    raise TimeoutError("too slow")


def main(argv: list[str] | None = None) -> None:
    """Try each architecture and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, with commas between them; all by default")
    parser.add_argument("--seconds", type=int, default=120, help="for each at most")
    args = parser.parse_args(argv)
    names = args.only.split(",") if args.only else list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_long)
    tokenizer, found = small_tokenizer(), defaultdict(list)
    for name in names:
        signal.alarm(args.seconds)
        step, error = tried(name, tokenizer)
        signal.alarm(0)
        found[step].append((name, error))
        print(f"{name}: {step} {error}", flush=True)
    print(f"\nWith transformers {transformers.__version__}:\n\n| | architectures |\n|---|---|")
    for step, rows in sorted(found.items(), key=lambda item: item[0] != "works"):
        shown = ", ".join(f"`{name}`" for name, _ in rows)
        print(f"| {NAMES.get(step, f'fails: {step}')} ({len(rows)}) | {shown} |")


if __name__ == "__main__":
    main()
