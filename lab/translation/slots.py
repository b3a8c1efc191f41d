"""
Names, places, numbers and times for training pairs, German or French to English.

Sentence collections know a handful of names (in Tatoeba: Tom, Mary and Boston), so a small model that is trained on
them writes these for every other name. `replace` puts others into a pair, on both sides; `sentence` writes a pair with
several of them. Both draw from the names of the data set `data/everyday_en_de_fr`, and two times in three make a name
that no list has, because a model learns some hundred names by heart but must copy thousands. `HELD_OUT` names never
enter training; they test whether a model copies.
"""

import random
import re
from collections.abc import Mapping, Sequence

import written
from words import PHRASES, draw_words


def _of_kind(kind: str) -> list[tuple[str, str, str]]:
    """Return the names of a kind in German, French and English."""
    return [(row["de"], row["fr"], row["en"]) for row in _ROWS if row["kind"] == kind]


_ROWS = written.read("names")
MEN, WOMEN, SURNAMES = ([name[0] for name in _of_kind(kind)] for kind in ("men", "women", "surnames"))
CITIES: list[tuple[str, ...]] = [*_of_kind("cities")]
COUNTRIES: list[tuple[str, ...]] = [
    *_of_kind("countries")
]  # these have no article in German and are feminine in French ("en France")
HELD_OUT = {
    "men": "Florian Hannes Rüdiger Till Baptiste Gaspard Loïc Tariq Bogdan Enzo Rodrigo "
    "Takeshi Ravi Callum Duncan".split(),
    "women": "Wiebke Annika Dorothea Svenja Capucine Maëlle Solène Noor Ludmila Bianca Paloma Haruka Kavita Fiona "
    "Harriet".split(),
    "cities": "Kassel Rostock Bielefeld Graz Lugano Grenoble Dijon Limoges Malmö Gdansk Bilbao Denver Perth".split(),
}
MONTHS = [
    tuple(line.split("/"))
    for line in (
        "Januar/janvier/January|Februar/février/February|März/mars/March|April/avril/April|Mai/mai/May|Juni/juin/June|"
        "Juli/juillet/July|August/août/August|September/septembre/September|Oktober/octobre/October|"
        "November/novembre/November|Dezember/décembre/December"
    ).split("|")
]
DAYS = [
    tuple(line.split("/"))
    for line in (
        "Montag/lundi/Monday|Dienstag/mardi/Tuesday|Mittwoch/mercredi/Wednesday|Donnerstag/jeudi/Thursday|"
        "Freitag/vendredi/Friday|Samstag/samedi/Saturday|Sonntag/dimanche/Sunday"
    ).split("|")
]
HOURS = [
    tuple(line.split("/"))
    for line in (
        "eins/une heure/one|zwei/deux heures/two|drei/trois heures/three|vier/quatre heures/four|"
        "fünf/cinq heures/five|"
        "sechs/six heures/six|sieben/sept heures/seven|acht/huit heures/eight|"
        "neun/neuf heures/nine|zehn/dix heures/ten|"
        "elf/onze heures/eleven|zwölf/midi/twelve"
    ).split("|")
]
SIDE = {"de": 0, "fr": 1, "en": 2}

# the name in a pair -> kinds of its new name: German and English, French and English
_KNOWN = {
    "de": {"Tom": ("Tom", MEN), "Maria": ("Mary", WOMEN), "Mary": ("Mary", WOMEN), "Johannes": ("John", MEN)},
    "fr": {"Tom": ("Tom", MEN), "Marie": ("Mary", WOMEN), "Mary": ("Mary", WOMEN), "Jean": ("John", MEN)},
}
for _name in "John Jim Bill Bob Jack Ken Mike Tony Johnny Jackson".split():
    _KNOWN["de"][_name] = _KNOWN["fr"][_name] = (_name, MEN)
for _name in "Alice Jane Nancy Emily Kate Lucy Linda Betty Ann Judy Susan Layla".split():
    _KNOWN["de"][_name] = _KNOWN["fr"][_name] = (_name, WOMEN)
_VOWELS = "AEIOUÉÈÊÀÂÎÔÛ"
_NUMBER = re.compile(r"(?<![\w.,:])\d{1,4}(?![\w.,:]*\w)")


def _elide(text: str) -> str:
    """Return French "de" or "que" before a name or a place, elided before a vowel."""
    text = re.sub(rf"\b([dD]|[qQ]u)e (?=[{_VOWELS}]\w*)", r"\1'", text)
    return re.sub(rf"\b([dD]|[qQ]u)['’](?=[A-ZÀ-Ü])(?![{_VOWELS}H])", r"\1e ", text)


def _followers(names: Sequence[str]) -> dict[str, list[str]]:
    """
    Return a Markov chain: two letters of the names (a space is the start) -> the next letters; a space is the end.
    """
    table: dict[str, list[str]] = {}
    for name in names:
        padded = f"  {name} "
        for place in range(2, len(padded)):
            table.setdefault(padded[place - 2 : place], []).append(padded[place])
    return table


_NAMES = [*MEN, *WOMEN, *SURNAMES, *(name for city in CITIES for name in city)]
_NEXT = _followers([name for name in _NAMES if " " not in name])
_TAKEN = {*_NAMES, *(name for names in HELD_OUT.values() for name in names)}


_ONSETS = (
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sc sch sh sl sm sn sp st str t th tr "
    "v w x y z"
).split()
_VOWELS_WITHIN = "a a a e e e i i o o u ä ö ü é è ë ï ai au ei eu ia ie io oo ou y".split()
_CODAS = (
    "b ck d f g h k l ld ll lt m n nd nn ng nk nt p q r rd rg rk rl rm rn rs rt s sch sk ss st t tt tz v x z a e i o "
    "ble que ville berg field burg heim ton wick ford mir"
).split()


def _letters(draw: random.Random) -> str:
    """Make a name from the Markov chain, or from syllables, which give pairs of letters that no list has."""
    if draw.randrange(2):
        syllables = [draw.choice(_ONSETS) + draw.choice(_VOWELS_WITHIN) for _ in range(draw.randrange(1, 4))]
        return ("".join(syllables) + draw.choice(_CODAS)).capitalize()
    made = "  "
    while (letter := draw.choice(_NEXT[made[-2:]])) != " ":
        made += letter
    return made.strip()


def _new_name(names: Sequence[str], draw: random.Random) -> str:
    """Return one of the names or, two times in three, an invented name."""
    if draw.randrange(3) == 0:
        return draw.choice(names)
    while True:
        made = _letters(draw)
        if 3 <= len(made) <= 12 and made not in _TAKEN:
            return made


def _whole_name(name: str, code: str, woman: bool, draw: random.Random) -> tuple[str, str]:
    """Return a name in source and target: a first name, half of the time with a surname, or a title and a surname."""
    if draw.randrange(2) == 0:
        return name, name
    surname = _new_name(SURNAMES, draw)
    title = {"de": "Frau", "fr": "Mme"}[code] if woman else "M."
    # German has no title for a man here, because "Herr" changes with the case
    if draw.randrange(4) == 3 and (woman or code == "fr"):
        return f"{title} {surname}", f"{'Ms.' if woman else 'Mr.'} {surname}"
    return f"{name} {surname}", f"{name} {surname}"


def _city(cities: Sequence[tuple[str, ...]], draw: random.Random) -> tuple[str, ...]:
    """Return a city in the three languages; an invented city has one name in all of them."""
    city = draw.choice([city for city in cities if not city[1].startswith("Le ")])
    name = _new_name([city[2]], draw)
    return city if name == city[2] else (name,) * 3


def _swap(text: str, old: str, new: str) -> tuple[str, int]:
    """Replace a word by another one, which keeps a genitive's s; return the text and the number of replacements."""
    return re.subn(rf"(?<!\w){re.escape(old)}(?=(?:s|'s|’s)?(?!\w))", new, text)


def _both(source: str, target: str, old: tuple[str, str], new: tuple[str, str]) -> tuple[str, str] | None:
    """Replace a word in a pair; return `None` unless both sides have it equally often."""
    source, first = _swap(source, old[0], new[0])
    target, second = _swap(target, old[1], new[1])
    return (source, target) if first == second > 0 else None


def replace(source: str, target: str, code: str, draw: random.Random) -> tuple[str, str] | None:
    """
    Replace the names, places and numbers of a pair.

    Args:
        source (`str`), target (`str`): The pair.
        code (`str`): Language of the source, `"de"` or `"fr"`.
        draw (`random.Random`): Chooses the new words.

    Returns:
        `tuple[str, str]`: the pair, or `None` if nothing was replaced.
    """
    pair, side = (source, target), SIDE[code]
    taken = {word.strip(".,!?\"'") for word in target.split()}
    for name, (english, others) in _KNOWN[code].items():
        if re.search(rf"(?<!\w){name}", pair[0]):
            genitive = re.search(rf"(?<!\w){name}s", pair[0])
            fits = [other for other in others if other not in taken and not (genitive and other[-1] in "sxzß")]
            new = draw.choice(fits) if genitive else _new_name(fits, draw)
            whole = (new, new) if genitive else _whole_name(new, code, others is WOMEN, draw)
            pair = _both(*pair, (name, english), whole) or pair
            taken.add(new)
    for places in (CITIES, COUNTRIES):
        for place in places:
            if place[2] in taken or all(part in taken for part in place[2].split()):
                new_place = _city(places, draw) if places is CITIES else draw.choice(places)
                pair = _both(*pair, (place[side], place[2]), (new_place[side], new_place[2])) or pair
                break
    numbers = [n for n in dict.fromkeys(_NUMBER.findall(pair[0])) if int(n) > 12 and n in _NUMBER.findall(pair[1])]
    for number in numbers:
        low = 10 ** (len(number) - 1)
        other = str(draw.randrange(max(13, low), 10 * low)) if len(number) < 4 else str(draw.randrange(1900, 2031))
        pair = _both(*pair, (number, number), (other, other)) or pair
    if pair == (source, target):
        return None
    return (_elide(pair[0]) if code == "fr" else pair[0]), pair[1]


def clock(draw: random.Random) -> tuple[str, str, str]:
    """Draw a time of day in the three languages, after "um", "à" and "at"."""
    hour, kind = draw.randrange(11), draw.randrange(6)
    word, later = HOURS[hour], HOURS[hour + 1]
    if kind == 0:
        return "halb " + later[0], word[1] + " et demie", "half past " + word[2]
    if kind == 1:
        return "Viertel nach " + word[0], word[1] + " et quart", "a quarter past " + word[2]
    if kind == 2:
        return "Viertel vor " + later[0], later[1] + " moins le quart", "a quarter to " + later[2]
    if kind == 3:
        return f"{'ein' if hour == 0 else word[0]} Uhr", word[1], word[2] + " o'clock"
    hours, minutes = draw.randrange(6, 24), draw.choice([0, 5, 10, 15, 20, 30, 35, 40, 45, 50])
    half = "a.m." if hours < 12 else "p.m."
    english = f"{(hours - 1) % 12 + 1}:{minutes:02d} {half}"
    if minutes == 0:
        return f"{hours} Uhr", f"{hours} heures", f"{(hours - 1) % 12 + 1} {half}"
    if kind == 4:
        return f"{hours}:{minutes:02d} Uhr", f"{hours} h {minutes:02d}", english
    return f"{hours}.{minutes:02d} Uhr", f"{hours}h{minutes:02d}", english


def date(draw: random.Random) -> tuple[str, str, str]:
    """Draw a day in the three languages, after "am", "le" and "on"."""
    day, month = draw.randrange(1, 29), draw.choice(MONTHS)
    first = "1er" if day == 1 else str(day)
    if draw.random() < 0.3:
        year = draw.randrange(1950, 2031)
        return f"{day}. {month[0]} {year}", f"{first} {month[1]} {year}", f"{month[2]} {day}, {year}"
    return f"{day}. {month[0]}", f"{first} {month[1]}", f"{month[2]} {day}"


def amount(draw: random.Random) -> tuple[str, str, str]:
    """Draw a sum of money in the three languages."""
    euros, cents = draw.randrange(2, 100), draw.choice([5, 10, 20, 49, 50, 80, 90, 95, 99])
    kind = draw.randrange(4)
    if kind == 0:
        return f"{euros} Euro", f"{euros} euros", f"{euros} euros"
    if kind == 1:
        return f"{euros},{cents:02d} Euro", f"{euros},{cents:02d} euros", f"{euros}.{cents:02d} euros"
    if kind == 2:
        return f"{euros},{cents:02d} €", f"{euros},{cents:02d} €", f"€{euros}.{cents:02d}"
    thousands, rest = draw.randrange(1, 20), draw.choice(["000", "200", "250", "500", "750"])
    return f"{thousands}.{rest} Euro", f"{thousands} {rest} euros", f"{thousands},{rest} euros"


SENTENCES = [(row["de"], row["fr"], row["en"]) for row in written.read("templates")]


def _fill(template: str, words: Mapping[str, tuple[str, ...]], side: int) -> str:
    text = re.sub(r"{([\w.]+)}", lambda slot: words[slot[1]][side], template)
    return text[:1].upper() + text[1:]


def sentence(code: str, draw: random.Random, held_out: bool = False) -> tuple[str, str, list[str]]:
    """
    Draw a pair with names, places, numbers or times.

    Args:
        code (`str`): Language of the source, `"de"` or `"fr"`.
        draw (`random.Random`): Chooses template and words.
        held_out (`bool`, *optional*, defaults to `False`): Names and cities of `HELD_OUT`, in templates that name one.

    Returns:
        `tuple`: source, target, and the names, places, numbers and times of the target.
    """
    men, women = (HELD_OUT["men"], HELD_OUT["women"]) if held_out else (MEN, WOMEN)
    cities = [(city,) * 3 for city in HELD_OUT["cities"]] if held_out else CITIES
    side, named = SIDE[code], ("{name}", "{man}", "{woman}", "{city}")
    templates = [lines for lines in SENTENCES if not held_out or any(slot in lines[2] for slot in named)]
    template = draw.choice(templates)
    country = draw.choice(COUNTRIES)
    if held_out:
        city, city2 = draw.sample(cities, 2)
        man, woman, surname = draw.choice(men), draw.choice(women), draw.choice(SURNAMES)
    else:
        city, city2 = _city(cities, draw), _city(cities, draw)
        man, woman, surname = _new_name(men, draw), _new_name(women, draw), _new_name(SURNAMES, draw)
    if not held_out and "surname" not in template[2] and draw.randrange(3) == 0:  # the name gets a second part
        man, woman = f"{man} {surname}", f"{woman} {surname}"
    anyone = draw.choice([man, woman])
    if "né le" in template[1] and code == "fr":
        anyone = man  # the participle "né" is masculine
    words = {
        "man": (man,) * 3, "woman": (woman,) * 3, "name": (anyone,) * 3, "surname": (surname,) * 3,
        "city": city, "city2": city2, "country": country, "month": draw.choice(MONTHS), "day": draw.choice(DAYS),
        "place": (country[2] if code == "de" else city[2],) * 3,
        "time": clock(draw), "date": date(draw), "amount": amount(draw),
        "n": (str(draw.randrange(13, 60)),) * 3, "n2": (str(draw.randrange(13, 60)),) * 3,
    }  # fmt: skip
    words |= draw_words(draw)
    source, target = _fill(template[side], words, side), _fill(template[2], words, 2).replace(".m..", ".m.")
    source = _elide(source) if code == "fr" else source
    return source, target, [words[slot][2] for slot in re.findall(r"{(\w+)}", template[2]) if slot not in PHRASES]
