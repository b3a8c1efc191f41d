"""`make demo-llm`: ten texts that are too long, and what `fit` makes of them with a pretrained language model.

    python recipes/causal/fit_demo.py --base_model runs/smollm2

Nothing is trained. The model is `models/rewrite_english`, an adapter, over SmolLM2-135M-Instruct. Without
`--base_model` the base comes from the Hub.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from hf_lenctrl import fit, pipeline


MODEL = Path(__file__).resolve().parents[2] / "models" / "rewrite_english"
# texts of the table, written for this demo, and limits in characters
SHOWN = {
    "Breakfast is served from seven to ten.": 40,
    "The meeting has been moved from Tuesday to Thursday at 3 p.m.": 50,
    "We are not able to deliver your order before Friday.": 44,
    "Please remember to switch off all of the lights before you leave the office.": 60,
    "My sister would rather walk to work than take the bus.": 45,
    "The path through the forest is closed because a tree fell on it.": 55,
    "It would be a good idea to book the table in advance, because the restaurant is small.": 70,
    "Your password must be changed within the next 14 days.": 45,
    "Daniel said that he was going to be about 20 minutes late.": 42,
    "I have been looking for my keys all morning. I think that I left them at the office.": 66,
}


def main(argv=None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base_model", help="folder of smollm2.py; by default the Hub's model")
    args = parser.parse_args(argv)
    base: dict[str, Any] = {"model_kwargs": {"base_model": args.base_model}} if args.base_model else {}
    rewrite = pipeline(MODEL, device="cpu", **base)
    begun = time.perf_counter()
    for fitted in fit(list(SHOWN), list(SHOWN.values()), model=rewrite):
        source = fitted.candidates[0]
        how = {"source": "it fits", "model": "reworded"}[fitted.origin]
        print(f"{source.length:>4}  {source.text}")
        print(f"{f'at most {fitted.requested}':>12}  {fitted.length:>4}  {fitted.text}  [{fitted.fault or how}]\n")
    print("We wrote the texts and chose the limits for this demo. A text with a fault is marked, never cut.")
    print(f"{time.perf_counter() - begun:.0f} seconds")


if __name__ == "__main__":
    main()
