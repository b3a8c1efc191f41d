"""Train the shipped translator from scratch, on one GPU in nine minutes, on the blocks of epochs.py.

    python lab/translation/train_packed.py runs/epochs --model models/translate_to_english --output_dir runs/packed

The model is Marian's with `ldpe`, as `LenCtrlMarianMTModel` computes it, written for blocks that hold several pairs:
one shape for all steps, so `torch.compile` compiles once. The loss is cross entropy with label smoothing and R-Drop
(Liang et al. 2021): each block passes twice, with different dropout, and the two distributions are drawn together.
`--model` gives the tokenizer, the table of units and the rest of the configuration; its weights are not read.
Without `--steps`, the number of steps is what fits into `--seconds`; the model's card names that of the shipped one. A
run is short, so one that died begins anew.
"""

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from hf_lenctrl.length_encoding import sinusoidal


NO_LENGTH = -(2**15)  # the value in the blocks of epochs.py
NAMES = ("s", "s_at", "s_pair", "t", "t_at", "t_pair", "remaining", "labels")
START = time.monotonic()


def say(*words: object) -> None:
    print(f"{time.monotonic() - START:6.0f}", *words, flush=True)


class Attention(nn.Module):
    """Marian's attention, with the projections of one input in one product."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))
        self.heads = heads

    def forward(self, x, memory, mask):
        layers = [self.q_proj, self.k_proj, self.v_proj]
        if memory is None:
            q, k, v = self._together(layers, x)
        else:
            q, (k, v) = layers[0](x), self._together(layers[1:], memory)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))

    @staticmethod
    def _together(layers, x):
        weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
        return F.linear(x, weight, bias).chunk(len(layers), 2)


class Layer(nn.Module):
    """A layer of Marian's encoder, or with `cross` of its decoder: a norm after each part."""

    def __init__(self, args: argparse.Namespace, width: int, cross: bool):
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = Attention(args.dim, args.heads), nn.LayerNorm(args.dim)
        if cross:
            self.encoder_attn, self.encoder_attn_layer_norm = Attention(args.dim, args.heads), nn.LayerNorm(args.dim)
        self.fc1, self.fc2 = nn.Linear(args.dim, width), nn.Linear(width, args.dim)
        self.final_layer_norm, self.dropout, self.dtype = nn.LayerNorm(args.dim), args.dropout, args.dtype

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self._add(self.self_attn_layer_norm, x, self.self_attn(x, None, mask))
        if memory is not None:
            x = self._add(self.encoder_attn_layer_norm, x, self.encoder_attn(x, memory, memory_mask))
        return self._add(self.final_layer_norm, x, self.fc2(F.relu(self.fc1(x))))

    def _add(self, norm, x, change):
        return norm(x + F.dropout(change, self.dropout, self.training)).to(self.dtype)


class Part(nn.Module):
    """The layers of the encoder or of the decoder, under the names that they have in a checkpoint."""

    def __init__(self, args: argparse.Namespace, layers: int, width: int, cross: bool):
        super().__init__()
        self.layers = nn.ModuleList(Layer(args, width, cross) for _ in range(layers))
        if cross:
            self.length_projection = nn.Linear(args.dim, args.dim, bias=False)


def positions(count: int, dim: int) -> torch.Tensor:
    """Return Marian's positions: sines in the first half of the columns, cosines in the second."""
    angles = torch.arange(count)[:, None] / 10_000 ** (torch.arange(0, dim, 2)[None].double() / dim)
    return torch.cat([angles.sin(), angles.cos()], 1).float()


class Translator(nn.Module):
    """The model from the tensors of blocks to the decoder's last states."""

    def __init__(self, args: argparse.Namespace, vocabulary: int):
        super().__init__()
        self.shared = nn.Embedding(vocabulary, args.dim)
        self.encoder = Part(args, args.encoder_layers, args.encoder_width, cross=False)
        self.decoder = Part(args, args.decoder_layers, args.decoder_width, cross=True)
        self.positions: torch.Tensor
        self.register_buffer("positions", positions(128, args.dim), persistent=False)
        self.dropout, self.dtype = args.dropout, args.dtype
        for name, weight in self.named_parameters():
            if "length_projection" in name:
                nn.init.zeros_(weight)
            elif "shared" in name:
                nn.init.normal_(weight, std=args.dim**-0.5)
            elif weight.dim() == 2:
                nn.init.xavier_normal_(weight, gain=0.7 if "attn" in name else 1.0)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, blocks: dict[str, torch.Tensor]) -> torch.Tensor:
        s_pair, t_pair, remaining = blocks["s_pair"], blocks["t_pair"], blocks["remaining"]
        causal = torch.ones(t_pair.shape[1], t_pair.shape[1], dtype=torch.bool, device=t_pair.device).tril()
        within = self._mask(s_pair[:, :, None] == s_pair[:, None])
        before = self._mask((t_pair[:, :, None] == t_pair[:, None]) & causal)
        across = self._mask(t_pair[:, :, None] == s_pair[:, None])
        x = self._embed(blocks["s"], blocks["s_at"])
        for layer in self.encoder.layers:
            x = layer(x, within)
        with torch.autocast(remaining.device.type, enabled=False):  # bfloat16 cannot distinguish neighbouring lengths
            length = self.decoder.length_projection(sinusoidal(remaining, x.shape[2]))  # ldpe
        y = self._embed(blocks["t"], blocks["t_at"], length * (remaining != NO_LENGTH).unsqueeze(2))
        for layer in self.decoder.layers:
            y = layer(y, before, x, across)
        return y

    def _mask(self, allowed):
        return torch.zeros(allowed.shape, dtype=self.dtype, device=allowed.device).masked_fill(~allowed, -3e4)[:, None]

    def _embed(self, ids, at, length: torch.Tensor | float = 0.0):
        dim = self.shared.embedding_dim
        embedded = self.shared(ids) * math.sqrt(dim) + self.positions[at] + length
        return F.dropout(embedded, self.dropout, self.training).to(self.dtype)


def gradient_of(logits: torch.Tensor, labels: torch.Tensor, smoothing: float, weight: float):
    """
    Compute the gradient of the loss from two passes, `(2 * tokens, vocabulary)`, and labels, `(tokens,)`, -1 for none:
    the smoothed cross entropy plus `weight` times the mean of both divergences, per token. Return the gradient, the
    cross entropy and the divergence.
    """
    counts = (labels >= 0).float()
    total = 2 * counts.sum()
    one, two = (part.float().log_softmax(1) for part in logits.chunk(2))
    p, q, gap = one.exp(), two.exp(), one - two
    p_q, q_p = (p * gap).sum(1, keepdim=True), -(q * gap).sum(1, keepdim=True)
    hot = torch.arange(logits.shape[1], device=logits.device)[None] == labels[:, None]
    wanted = hot.float() * (1 - smoothing) + smoothing / logits.shape[1]
    entropy = -(((one + two) * hot).sum(1) * counts).sum() / total
    per_token = (counts / total)[:, None]
    first = per_token * (p - wanted + weight * (p * gap + p - q - p * p_q))
    second = per_token * (q - wanted + weight * (q - p - q * gap - q * q_p))
    divergence = ((p_q + q_p)[:, 0] * counts).sum() / total
    return torch.cat([first, second]).to(logits.dtype), entropy, divergence


class Loss(torch.autograd.Function):
    """The loss over the vocabulary, which computes its gradient with its value, so that the logits are stored once."""

    @staticmethod
    def forward(ctx, states, embedding, labels, function, args):
        weight = embedding.to(states.dtype)
        gradient, entropy, divergence = function(states @ weight.t(), labels, args.label_smoothing, args.r_drop)
        ctx.save_for_backward(gradient @ weight, gradient.t() @ states)
        ctx.mark_non_differentiable(divergence)
        return entropy, divergence

    @staticmethod
    def backward(ctx, *_):
        states, embedding = ctx.saved_tensors
        return states, embedding.float(), None, None, None


def trained_lengths(epoch: dict[str, torch.Tensor]) -> dict[str, int]:
    """Return the percentiles of the lengths in the rows of an epoch, in units, for `config.trained_lengths`."""
    told = epoch["remaining"][(epoch["t_at"] == 0) & (epoch["t_pair"] > 0)]
    lengths = told[told != NO_LENGTH].cpu().numpy()
    return {**{f"{q}%": int(np.percentile(lengths, q)) for q in (1, 50, 99)}, "max": int(lengths.max())}


class Trainer:
    """The state of a run."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        args.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        config = json.loads(Path(args.model, "config.json").read_text(encoding="utf-8"))
        self.model = Translator(args, config["vocab_size"]).to(self.device)
        say(f"{sum(p.numel() for p in self.model.parameters()) / 1e6:.1f} million parameters")
        self.forward = torch.compile(self.model) if args.compile else self.model
        self.gradient = torch.compile(gradient_of) if args.compile else gradient_of
        fused = self.device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), args.learning_rate, (0.9, 0.98), 1e-9, fused=fused)
        self.steps, self.step = args.steps, 0
        self.lengths: dict[str, int] = {}

    def load(self, path: Path) -> dict[str, torch.Tensor]:
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]).to(self.device) for name in NAMES}

    def blocks(self):
        """Yield the blocks of each step, epoch after epoch, each in a new order."""
        used: dict[Path, int] = {}
        while True:
            there = sorted(path for path in Path(self.args.epochs).glob("[0-9]*.npz") if path.stem.isdigit())
            if not there:
                raise ValueError(f"{self.args.epochs} has no epochs; make them with epochs.py")
            path = min(there, key=lambda path: (used.get(path, 0), int(path.stem)))
            used[path] = used.get(path, 0) + 1
            epoch = self.load(path)
            if len(epoch["s"]) < self.args.blocks:
                raise ValueError(
                    f"an epoch must have at least {self.args.blocks} blocks, {path} has {len(epoch['s'])}"
                )
            self.lengths = self.lengths or trained_lengths(epoch)
            rng = torch.Generator().manual_seed(self.args.seed * 1000 + sum(used.values()))
            order = torch.randperm(len(epoch["s"]), generator=rng).to(self.device)
            say(f"pass {sum(used.values())}: {path.name} of {len(there)}, {len(order) // self.args.blocks} steps")
            for at in order[: len(order) // self.args.blocks * self.args.blocks].view(-1, self.args.blocks):
                yield {name: value[at].long() for name, value in epoch.items()}

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def rate(self) -> float:
        """Return the learning rate: a linear warm-up, then a linear decay to zero."""
        warm = self.args.warmup_steps
        if self.step < warm or not self.steps:
            return self.args.learning_rate * min(1, (self.step + 1) / warm)
        return self.args.learning_rate * max(0, 1 - (self.step - warm) / max(1, self.steps - warm))

    def train(self) -> None:
        begin, since, found = time.monotonic(), time.monotonic(), []
        for blocks in self.blocks():
            labels = blocks.pop("labels").flatten()
            twice = {name: torch.cat([value, value]) for name, value in blocks.items()}
            with self.autocast():
                states = self.forward(twice)
            entropy, divergence = Loss.apply(
                states.flatten(0, 1).to(self.args.dtype), self.model.shared.weight, labels, self.gradient, self.args
            )
            entropy.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.param_groups[0]["lr"] = self.rate()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            found.append(torch.stack([entropy.detach(), divergence]))
            if self.step % 200 == 0 or self.step in (10, 40):
                nll, divergence = torch.stack(found).mean(0).tolist()
                seconds = (time.monotonic() - since) / len(found)
                say(f"step {self.step} nll {nll:.4f} kl {divergence:.4f} {1000 * seconds:.1f} ms lr {self.rate():.1e}")
                if not math.isfinite(nll):
                    raise SystemExit("the loss is not finite")
                if not self.steps and self.step >= 600:
                    left = self.args.seconds - (time.monotonic() - begin)
                    self.steps = self.step + max(1, int(0.98 * left / seconds))
                    say(f"steps {self.steps}")
                found = []
                since = time.monotonic()
            if self.step % self.args.eval_steps == 0:
                self.evaluate()
                self.save()
                found, since = [], time.monotonic()
            late = not self.args.steps and time.monotonic() - begin > self.args.seconds + 15
            if self.step == self.steps or self.step == self.args.stop_step or late:
                break
        self.evaluate()
        self.save()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Measure the cross entropy per token, without a length."""
        self.model.eval()
        for path in sorted(Path(self.args.epochs).glob("validation_*.npz")):
            rows, total, count = self.load(path), 0.0, 0
            for at in range(0, len(rows["s"]), 64):
                blocks = {name: value[at : at + 64].long() for name, value in rows.items()}
                labels = blocks.pop("labels").flatten()
                with self.autocast():
                    logits = self.model(blocks).flatten(0, 1).float() @ self.model.shared.weight.t()
                total += F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="sum").item()
                count += int((labels >= 0).sum())
            say(f"step {self.step} {path.stem} {total / count:.4f}")
        self.model.train()

    def save(self) -> None:
        """Save a checkpoint folder with float16 weights."""
        args, out = self.args, Path(self.args.output_dir)
        weights = {f"model.{name}": value.half().cpu() for name, value in self.model.state_dict().items()}
        with safe_open(Path(args.model, "model.safetensors"), "pt") as file:
            kept = [name for name in file.keys() if "unit_table" in name]  # noqa: SIM118, not a dictionary
            weights |= {name: file.get_tensor(name) for name in kept}
        weights["final_logits_bias"] = torch.zeros(1, len(weights["model.shared.weight"]), dtype=torch.float16)
        others = [path for path in Path(args.model).rglob("*") if path.is_file() and path.suffix != ".md"]
        for path in others:  # also the predictor's files
            target = out / path.relative_to(args.model)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path != Path(args.model, "model.safetensors"):
                shutil.copyfile(path, target)
        save_file(weights, out / "new.safetensors", metadata={"format": "pt"})
        os.replace(out / "new.safetensors", out / "model.safetensors")
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        config["d_model"], config["trained_lengths"] = args.dim, self.lengths
        for part, layers, width in (
            ("encoder", args.encoder_layers, args.encoder_width),
            ("decoder", args.decoder_layers, args.decoder_width),
        ):
            config |= {f"{part}_layers": layers, f"{part}_ffn_dim": width, f"{part}_attention_heads": args.heads}
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        say(f"step {self.step} saved")


def main(argv=None) -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("epochs", help="folder of epochs.py")
    parser.add_argument("--model", required=True, help="checkpoint with tokenizer, table of units, configuration")
    parser.add_argument("--output_dir", required=True, help="folder for the model")
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit into --seconds")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--stop_step", type=int, default=0, help="end early, to try")
    parser.add_argument("--blocks", type=int, default=256, help="of a step")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--encoder_layers", type=int, default=6)
    parser.add_argument("--encoder_width", type=int, default=1536, help="of the feed-forward networks")
    parser.add_argument("--decoder_layers", type=int, default=2)
    parser.add_argument("--decoder_width", type=int, default=1024)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--r_drop", type=float, default=1.0, help="weight of the divergence; alpha / 2 of the paper")
    parser.add_argument("--label_smoothing", type=float, default=0.1)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--warmup_steps", type=int, default=1000)
    parser.add_argument("--eval_steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no_compile", dest="compile", action="store_false")
    Trainer(parser.parse_args(argv)).train()


if __name__ == "__main__":
    main()
