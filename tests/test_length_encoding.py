"""Tests of the encodings against independent values of the papers' equations and against their properties."""

import math
from pathlib import Path

import pytest
import torch
from conftest import build_model

from hf_lenctrl.length_encoding import fairseq_ldpe, fairseq_lrpe, fairseq_sinusoidal, ldpe, lrpe, pre, sinusoidal


LENGTH_ENCODINGS = [ldpe, lrpe, pre]
GOLDEN_FILE = Path(__file__).parents[2] / "shared" / "golden" / "paper_equations.npz"
AUTHORS_FILE = GOLDEN_FILE.with_name("reference_posenc.npz")

# Whole vectors from paper_equations.npz, corner_d7_*_pos3_len5: values in float64
LDPE = [0.909297426826, -0.416146836547, 0.143440636703, 0.989658922934]
LDPE += [0.010358764093, 0.999946346564, 0.000745518675]
LRPE = [0.14112000806, -0.9899924966, 0.948173505885, -0.317753053073]
LRPE += [0.930560671335, 0.366137729501, 0.685361033898]

# Single entries from the same file, PE_d*, LDPE_d* and LRPE_d*: encoding, progress, length, dim, column, value
ENTRIES = [
    (None, 26, None, 512, 256, 0.257080551892),
    (None, 4999, None, 8, 7, 0.282703119517),
    (ldpe, 27, 75, 64, 30, 0.597267858100),
    (ldpe, 1023, 5000, 8, 5, -0.479506125101),
    (ldpe, 1024, 10, 512, 256, 0.655785060857),  # past the length
    (ldpe, 4999, 1, 8, 2, 0.282853768777),
    (lrpe, 26, 75, 512, 256, 0.138920492562),
    (lrpe, 4999, 5000, 8, 7, -0.525498326167),
    (lrpe, 27, 1, 64, 63, -0.292138808734),
    (lrpe, 4999, 3, 8, 2, -0.230969864102),  # past the length
]


def tolerance(progress: float, length: float | None) -> float:
    """What float32 can keep of an angle: the argument is rounded before the sine is taken."""
    return 5e-7 * (1 + max(progress, length or 0))


def encode(encoding, progress: float, length: float | None, dim: int) -> torch.Tensor:
    """One vector; no `encoding` means PE of the position."""
    if encoding is None:
        return sinusoidal(torch.tensor([[progress]]), dim)[0, 0]
    return encoding(torch.tensor([[progress]]), torch.tensor([[length]]), dim)[0, 0]


@pytest.mark.parametrize(("encoding", "expected"), [(ldpe, LDPE), (lrpe, LRPE)])
def test_vectors_match_the_papers_equations(encoding, expected):
    torch.testing.assert_close(encode(encoding, 3, 5, 7), torch.tensor(expected), rtol=0, atol=tolerance(3, 5))


@pytest.mark.parametrize("encoding, progress, length, dim, column, expected", ENTRIES)
def test_entries_match_the_papers_equations(encoding, progress, length, dim, column, expected):
    assert abs(float(encode(encoding, progress, length, dim)[column]) - expected) <= tolerance(progress, length)


@pytest.mark.parametrize("dim", [1, 7, 8, 512])
@pytest.mark.parametrize("progress, length", [(0, 9), (3, 4), (80, 75), (4999, 5000)])
def test_pre_matches_its_formula(progress, length, dim):
    # Botcazou et al. 2026: sin and cos of r * d/2 * x_j with x_j = 2 floor(j / 2) / d, r clamped to [0, 1]
    ratio = min(progress / length, 1.0)
    angles = [ratio * dim / 2 * (2 * (j // 2) / dim) for j in range(dim)]
    expected = [math.cos(angle) if j % 2 else math.sin(angle) for j, angle in enumerate(angles)]
    # the angle grows to dim / 2, and float32 rounds it
    actual, atol = encode(pre, progress, length, dim), 5e-7 * (1 + dim)
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=atol)


def test_the_noise_of_pre_has_its_standard_deviation_and_stays_within_the_ratio():
    torch.manual_seed(0)
    progress, length = torch.full((1, 20_000), 50), torch.tensor([[100]])
    noisy = pre(progress, length, 4, noise=0.02)  # columns 2 and 3: sin r and cos r
    ratio = torch.atan2(noisy[0, :, 2], noisy[0, :, 3])
    assert float(ratio.mean()) == pytest.approx(0.5, abs=0.001) and float(ratio.std()) == pytest.approx(0.02, rel=0.03)
    ends = pre(torch.tensor([[0, 100]]).repeat(1, 500), length, 4, noise=0.02)
    ratio = torch.atan2(ends[0, :, 2], ends[0, :, 3]).view(500, 2)
    assert 0.4 < float((ratio[:, 0] == 0).float().mean()) < 0.6  # what falls below 0 is 0
    assert float(ratio.min()) >= 0 and float(ratio.max()) <= 1 + 1e-6


def test_pre_noise_is_pre_but_in_training():
    shape = {"init_std": 0.3, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    models = [build_model("bart", length_encoding=name, **shape) for name in ("pre", "pre_noise")]
    batch = {"input_ids": torch.tensor([[5, 8, 9, 2]]), "decoder_input_ids": torch.tensor([[2, 5, 6, 7]]), "length": 4}
    seen = []
    for training in (False, True):
        with torch.no_grad():
            seen.append([[model.train(training)(**batch).logits for _ in range(2)] for model in models])
    (plain, again), (noisy, _) = seen[0]
    assert torch.equal(plain, again) and torch.equal(noisy, plain)
    assert torch.equal(*seen[1][0]) and not torch.allclose(*seen[1][1], atol=1e-4)  # drawn anew for each call


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bfloat16", "float64"])
@pytest.mark.parametrize("encoding", LENGTH_ENCODINGS)
def test_any_dtype_gives_the_same_float32(encoding, dtype):
    progress, length = torch.tensor([[0, 1, 2, 3, 5]]), torch.tensor([[3]])
    dtype = getattr(torch, dtype)
    actual = encoding(progress.to(dtype), length.to(dtype), 6)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, encoding(progress.float(), length.float(), 6), rtol=0, atol=0)


@pytest.mark.skipif(not GOLDEN_FILE.is_file(), reason="shared/golden/paper_equations.npz is not beside the repository")
@pytest.mark.parametrize("dim", [8, 64, 512])
def test_every_golden_value_is_matched(dim):
    golden = pytest.importorskip("numpy").load(GOLDEN_FILE)
    position = torch.from_numpy(golden[f"pos_d{dim}"])  # (P,)
    length = torch.from_numpy(golden[f"len_d{dim}"])  # (L,)
    progress = position.expand(len(length), -1)  # (L, P)
    for name, actual, reach in [
        ("PE", sinusoidal(position, dim), position),
        ("LDPE", ldpe(progress, length.unsqueeze(1), dim), torch.maximum(progress, length.unsqueeze(1))),
        ("LRPE", lrpe(progress, length.unsqueeze(1), dim), torch.maximum(progress, length.unsqueeze(1))),
    ]:
        difference = (actual.double() - torch.from_numpy(golden[f"{name}_d{dim}"])).abs()  # (..., dim)
        assert difference.shape[-1] == dim
        assert bool((difference <= 5e-7 * (1 + reach).unsqueeze(-1)).all()), name


# The authors' code at width 6, where the exponents k / (h - 1) are 0, 1/2 and 1: three sines, three cosines.
# Argument L + 2 - n = 4: of 4, 4 / 100 and 4 / 10000
LDPE_4 = [-0.756802495308, 0.039989334187, 0.000399999989, -0.653643620864, 0.999200106661, 0.99999992]
# Argument n + 2 = 5, base L + 1 = 25: of 5, 1 and 1 / 5
LRPE_5 = [-0.958924274663, 0.841470984808, 0.198669330795, 0.283662185463, 0.540302305868, 0.980066577841]
# Argument 2, base 4: of 2, 1 and 1 / 2
LRPE_2 = [0.909297426826, 0.841470984808, 0.479425538604, -0.416146836547, 0.540302305868, 0.87758256189]
FAIRSEQ = [(fairseq_ldpe, 3, 5, LDPE_4), (fairseq_lrpe, 3, 24, LRPE_5), (fairseq_lrpe, 0, 3, LRPE_2)]
FAIRSEQ += [(fairseq_ldpe, 6, 5, [0.0] * 6)]  # one past the length: their row of padding
FAIRSEQ += [(fairseq_ldpe, 7, 5, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0])]  # two past it, and beyond that their code raises


@pytest.mark.parametrize("encoding, progress, length, expected", FAIRSEQ)
def test_vectors_match_the_authors_formulas(encoding, progress, length, expected):
    actual = encode(encoding, progress, length, 6)
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=2e-6)
    odd = encode(encoding, progress, length, 7)
    assert torch.equal(odd, torch.cat([actual, torch.zeros(1)]))


def test_the_authors_formula_at_a_width_without_exponents():
    three = [0.141120008, -0.989992497]
    for dim, expected in ((1, [0.0]), (2, three), (3, [*three, 0.0])):
        actual = fairseq_sinusoidal(torch.tensor(3), dim)
        torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.skipif(not AUTHORS_FILE.is_file(), reason="shared/golden/reference_posenc.npz is not beside it")
@pytest.mark.parametrize("batch", ["eq", "first_longest", "first_short", "len_differs", "one"])
@pytest.mark.parametrize("dim", [8, 64, 512])
def test_values_of_the_authors_code_are_matched(dim, batch):
    golden = pytest.importorskip("numpy").load(AUTHORS_FILE)
    length = torch.from_numpy(golden[f"{batch}_length"]).unsqueeze(1) - 1  # theirs counts EOS
    for name, encoding in (("pe", None), ("ldpe", fairseq_ldpe), ("lrpe", fairseq_lrpe)):
        expected = torch.from_numpy(golden[f"{name}_d{dim}_{batch}_inc"])  # (B, T, d), step by step
        progress = torch.arange(expected.shape[1]).expand(len(length), -1)
        actual = fairseq_sinusoidal(progress + 2, dim) if encoding is None else encoding(progress, length, dim)
        torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6)
