"""
Words with their articles and phrases, both of the data set `data/everyday_en_de_fr`, for the sentences of slots.py.

Collections of sentences lack many words of daily life (pharmacy, onion, plumber). A slot `{place.acc}` is a word of
the kind `place` in the form `acc`, which each language writes in its own way; `{place2.acc}` is another word of it. A
slot `{do}` is a verb with what belongs to it ("hang up the laundry"), `{done}` the same in the past.
"""

import random
import re

import written


DATIVE = {"der": "dem", "das": "dem", "die": "der"}
TO = {"der": "zum", "das": "zum", "die": "zur"}
PREFIXES = (
    "abhanden|ab|an|auf|aus|bei|bereit|ein|empor|entgegen|fertig|fest|fort|frei|gegenüber|gut|heim|heran|heraus|herbei|"
    "herein|herum|herunter|hervor|her|hinaus|hinein|hinunter|hinzu|hin|hoch|kennen|klar|leer|los|mit|nach|nieder|raus|"
    "rein|runter|sauber|stand|statt|teil|trocken|um|unter|vorbei|vor|warm|weg|weiter|wieder|zurecht|zurück|zusammen|"
    "zu|über|durch"
)
# French verbs with an aspirated h, before which "de" is not elided
ASPIRATED = "ach|aï|arce|ausse|eurt|iss|och|ors|url|ur"
IN = {"der": "im", "das": "im", "die": "in der"}


def _read() -> dict[str, list[tuple[str, str, str]]]:
    words: dict[str, list[tuple[str, str, str]]] = {}
    for row in written.read("words"):
        words.setdefault(row["kind"], []).append((row["de"], row["fr"], row["en"]))
    return words


WORDS = _read()


def forms(german: str, french: str, english: str) -> dict[str, tuple[str, str, str]]:
    """
    Return a word in the forms of the slots, in the three languages.

    `the`: der/le/the; `acc`: den/le/the; `dat`: dem/du (with "de")/the; `to`: zum/au/the; `in`: im/dans le/the;
    `a`: ein/un/a; `one`: einen/un/a; `ofa`: einen/d'un/a; `my`: mein/mon/my; `mine`: meinen/mon/my; `no`: keinen/de
    (with "pas")/no; `some`: without an article/du/without an article; `bare`: without an article in all of them.
    """
    article, noun = german.split(" ", 1)
    noun, _, weak = noun.partition("+")  # "Kunde+n": den Kunden
    french, gender = (french[:-2], french[-1]) if french[-2:] in (" m", " f") else (french, "")
    elided, plural = french.startswith("l'"), french.startswith("les ")
    own = french[2:] if elided else french.split(" ", 1)[1]
    gender = gender or {"le": "m", "la": "f"}.get(french.split(" ")[0], "p")
    vowel = elided or re.match("[aeiouyéèêœâîôûh]", own) is not None and own[0] != "h"
    to = "aux " + own if plural else "au " + own if gender == "m" and not elided else "à " + french
    of = "des " + own if plural else "du " + own if gender == "m" and not elided else "de " + french
    a = ("des " if plural else "une " if gender == "f" else "un ") + own
    mine = ("mes " if plural else "ma " if gender == "f" and not vowel else "mon ") + own
    ending = "e" if article == "die" else ""
    accusative = "en" if article == "der" else ending
    an = ("an " if re.match("(?i)(?!eu|one|once)[aeio]|u[mnp](?!i)|hour|hono|X-", english) else "a ") + english
    return {
        "the": (f"{article} {noun}", french, "the " + english),
        "acc": (f"{'den' if article == 'der' else article} {noun}{weak}", french, "the " + english),
        "dat": (f"{DATIVE[article]} {noun}{weak}", of, "the " + english),
        "to": (f"{TO[article]} {noun}{weak}", to, "the " + english),
        "in": (f"{IN[article]} {noun}{weak}", "dans " + french, "the " + english),
        "a": (f"ein{ending} {noun}", a, an),
        "one": (f"ein{accusative} {noun}{weak}", a, an),
        "my": (f"mein{ending} {noun}", mine, "my " + english),
        "mine": (f"mein{accusative} {noun}{weak}", mine, "my " + english),
        "mydat": (f"mein{DATIVE[article][1:]} {noun}{weak}", mine, "my " + english),
        "no": (f"kein{accusative} {noun}{weak}", ("d'" if vowel else "de ") + own, "no " + english),
        "of": (f"{'den' if article == 'der' else article} {noun}{weak}", of, "the " + english),
        "ofa": (f"ein{accusative} {noun}{weak}", ("de " if plural else "d'") + a.removeprefix("des "), an),
        "some": (noun, of, english),
        "bare": (noun, own, english),
    }


def _infinitive(german: str, done: str) -> str | None:
    """Put "zu" into the infinitive at the end of a phrase: "aufhängen", "aufzuhängen". Return `None` if unsure."""
    *others, verb = german.split()
    participle = done.split()[-1] if done else ""
    if not participle:
        return None
    if prefix := re.match(rf"({PREFIXES})ge", participle):
        if not verb.startswith(prefix[1]):
            return None
        verb = f"{prefix[1]}zu{verb[len(prefix[1]) :]}"
    elif participle.startswith("ge") or re.match("be|ver|ent|er|zer", verb) or verb.endswith("ieren"):
        verb = "zu " + verb
    elif "ge" not in participle and re.match("über|unter|wieder", verb):
        # such a verb has no separable part, because its participle has no "ge"
        verb = "zu " + verb
    else:
        return None
    return " ".join([*others, verb])


def _phrases() -> dict[str, list[tuple[str, str, str]]]:
    """
    Return the phrases in the forms of the slots, in the three languages.

    `do`: aufhängen/étendre/hang up; `zu`: aufzuhängen/d'étendre/hang up; `zua`: aufzuhängen/étendre/hang up; `done`:
    aufgehängt/étendu/hung up; `did`: aufgehängt/étendu/hang up.
    """
    found: dict[str, list[tuple[str, str, str]]] = {form: [] for form in ("do", "zu", "zua", "done", "did")}
    for row in written.read("phrases"):
        german, french, english, german_done, french_done, english_done = (
            row[column] for column in ("de", "fr", "en", "de_done", "fr_done", "en_done")
        )
        found["do"].append((german, french, english))
        if infinitive := _infinitive(german, german_done):
            vowel = re.match(f"[aeiouyéèêâîôœ]|h(?!{ASPIRATED})", french)
            found["zu"].append((infinitive, ("d'" if vowel else "de ") + french, english))
            found["zua"].append((infinitive, french, english))
        if german_done:
            found["done"].append((german_done, french_done, english_done))
            found["did"].append((german_done, french_done, english))
    return found


PHRASES = _phrases()


def draw_words(draw: random.Random) -> dict[str, tuple[str, str, str]]:
    """
    Draw two words of each kind in all forms (`place.acc`, `place2.acc`, ...), and a phrase in all forms (`do`, ...).
    """
    words = {form: draw.choice(phrases) for form, phrases in PHRASES.items()}
    for kind, entries in WORDS.items():
        for name, entry in zip((kind, kind + "2"), draw.sample(entries, 2), strict=True):
            words.update({f"{name}.{form}": value for form, value in forms(*entry).items()})
    return words
