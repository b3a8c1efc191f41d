"""`make demo-llm`: shorten ten texts to their limits, by `fit` with a pretrained language model.

    python recipes/causal/fit_demo.py --base_model runs/smollm2

The demo trains nothing. The model is the adapter `models/rewrite_english` over SmolLM2-135M-Instruct. Without
`--base_model` the base model comes from the Hub.
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
    "We are not able to deliver your order before Friday.": 44,
    "Please remember to switch off all of the lights before you leave the office.": 60,
    "If it rains tomorrow, we are going to stay at home and play cards.": 60,
    "Can you tell me how I can get to the nearest hospital?": 40,
    "The path through the forest is closed because a tree fell on it.": 55,
    "It would be a good idea to book the table in advance, because the restaurant is small.": 70,
    "Your password must be changed within the next 14 days.": 45,
    "Daniel said that he was going to be 20 minutes late.": 40,
    "Fares on the regional buses will rise by 20 cents on 1 January, the transport authority has announced. Monthly "
    "passes for pupils and pensioners are not affected. The extra income is meant to pay for later evening services "
    "on the three busiest routes.": 225,
}


def main(argv=None) -> None:
    """Fit the texts, and print each text before and after."""
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
    print("We wrote the texts and chose the limits for this demo; texts that were reworded badly are left out.")
    print("A text with a fault is marked, never cut.")
    print(f"{time.perf_counter() - begun:.0f} seconds")


if __name__ == "__main__":
    main()
