"""Named units of length: graphemes, UTF-16, SMS, posts on X, Chinese words, syllables, widths in Arial."""

import functools
import itertools
import unicodedata
from collections.abc import Callable
from string import ascii_letters, digits

import regex

from .character_costs import Columns, Learned, Unit


# Grapheme clusters: a character of each kind that Unicode Standard Annex 29 distinguishes, and the patterns of these
# kinds in the same order. The first pattern that matches a character gives its kind.
_CLUSTER_KINDS = (
    "\r\n\t\u0600\u200d\u1100\u1160\u11a8\uac00\uac01\U0001f1e6\u094d\u1cf5\u0301\u200c\u0903\u0915\u00a9a"
)
_CLUSTER_KIND = regex.compile(
    r"(\r)|(\n)|(\p{GCB=Control})|(\p{GCB=Prepend})|(\p{GCB=ZWJ})|(\p{GCB=L})|(\p{GCB=V})|(\p{GCB=T})|(\p{GCB=LV})"
    r"|(\p{GCB=LVT})|(\p{RI})|((?=\p{InCB=Linker})\p{GCB=Extend})|(\p{InCB=Linker})|(\p{InCB=Extend})"
    r"|(\p{GCB=Extend})|(\p{GCB=SpacingMark})|(\p{InCB=Consonant})|(\p{ExtPict})|()"
)
# Chinese words: a Han character, or a word of Latin letters and digits
_WORD = r"[\p{Latin}\p{Nd}](?:(?!\p{Han})\p{M})*"
_CHINESE = regex.compile(rf"\p{{Han}}|(?:{_WORD})+(?:['’.,-](?:{_WORD})+)*")
_CHINESE_KINDS, _CHINESE_KIND = "汉a\u0301- ", regex.compile(r"(\p{Han})|([\p{Latin}\p{Nd}])|(\p{M})|(['’.,-])|()")
# The default alphabet of 3GPP TS 23.038; a character of its extension table takes two septets.
_GSM_7 = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./:;<=>?¡ÄÖÑÜ§¿äöñüà" + digits + ascii_letters
_GSM_7_EXTENSION = "^{}\\[~]|€\f"
# Posts on X, twitter-text 3.1 with config/v3.json: the characters of weight 1 (others have 2), addresses, emoji
_LIGHT = regex.compile(r"[\0-\u10ff\u2000-\u200d\u2010-\u201f\u2032-\u2037]")
_ADDRESS = regex.compile(
    r"(?<![a-z\d@#$])(?:(https?://)|(?<![-_./]))(?:[\p{Latin}\d](?:[\p{Latin}\d_-]*[\p{Latin}\d])?\.)+[a-z]{2,}"
    r"(?![a-z\d@])(?::\d+)?(?:/(?:[\p{Latin}\p{Cyrillic}\d!*';:=+,.$/%#_~@|&()-]*[\p{Latin}\p{Cyrillic}\d=_#/+-])?)?"
    r"(?:\?[\p{Latin}\d!?*'();:&=+$/%#_.,~|@-]*[\p{Latin}\d&=#/-])?",
    regex.I,
)
_JOINED = regex.compile(r"\p{ExtPict}\p{EMod}?\ufe0f?(?:\u200d\p{ExtPict}\p{EMod}?\ufe0f?)+")
_SIGN = regex.compile(
    r"(?P<light>[©®])|(?P<text_base>[\p{EBase}--\p{EPres}])|(?P<base>\p{EBase})|(?P<skin>\p{EMod})|(?P<flag>\p{RI})"
    r"|(?P<text>[\p{Emoji}--\p{EPres}--[0-9#*]])|(?P<emoji>\p{ExtPict})|(?P<selector>\ufe0f)|(?P<joiner>\u200d)"
    r"|(?P<never>[\u20e3\U000e0020-\U000e007f])|(?P<dot>\.)|(?P<space>\s)|(?P<letter>\p{L})",
    regex.V1,
)
_EMOJI = {"light", "text_base", "base", "skin", "flag", "text", "emoji"}
_JOINS = {  # (last state, sign that continues its emoji): (weight of the sign, next state)
    ("light", "selector"): (1, "emoji"),
    ("text", "selector"): (0, "emoji"),
    ("text_base", "selector"): (0, "base"),
    ("text_base", "skin"): (0, "emoji"),
    ("base", "skin"): (0, "emoji"),
    ("flag", "flag"): (0, "emoji"),
}
# Widths in thousandths of an em: Adobe's metrics of Helvetica, which are those of Arial. Other characters count 1000.
_ARIAL = {
    **{191: "'", 222: "ijl‘’‚", 260: "|¦", 278: " !,./:;I[\\]ft\xa0·", 333: "()-`r¡¨¯²³´¸¹“”„‹›", 334: "{}", 350: "•"},
    **{355: '"', 365: "º", 370: "ª", 389: "*", 400: "°", 469: "^", 500: "Jcksvxyz", 537: "¶"},
    **{556: "#$0123456789?L_abdeghnopqu¢£¤¥§«µ»ðþ–†‡€", 584: "+<=>~¬±×÷", 611: "FTZ¿ßø", 667: "&ABEKPSVXYÞ"},
    **{722: "CDHNRUwÐ", 737: "©®", 778: "GOQØ", 833: "Mm", 834: "¼½¾", 889: "%æ", 944: "Wœ", 1015: "@"},
}
# Syllables: the vowels of a language, the pattern of silent letters, and the pattern of the start of a syllable. In a
# pattern, V is a vowel, C is another letter, $ is the end of a word.
_SYLLABLES = {
    "en": (
        "aeiouy",
        "(?<=VC*C)(?<!(?:(?!l)C)l)(?:e(?=$|ly)|(?<![cghsxz])e(?=s$)|(?<![dt])e(?=d$))",
        "(?<!V)V|(?<=(?<![cglnstx])i)[aou]|(?<=(?<![gq])u)a|(?<=e)o|(?<=V)i(?=ng)|(?<=[^ ]y)[aeiou]",
    ),
    "de": ("aeiouyäöü", "(?<=q)u|(?<= )y(?=V)", "(?<=[lnrt])i(?=en)|(?<=[lnst])io|[aeo][iuy]|äu|ie|aa|ee|oo|V"),
    "fr": (
        "aeiouyàâäéèêëîïôöùûüœæ",
        "(?<=q)u|(?<=g)u(?!C)|(?<=VC*(?:C|[gq]u))e(?=s?$)",
        "(?<!V|[gq]u)V|(?<=[gq]u)V|(?<=é)(?:[aouiîèâ]|e(?=[rnlz]))|(?<=[aoé])é|(?<=V)[ïë]|(?<=Vy)(?!es?$)V"
        "|(?<=pa)y(?=s)|(?<=[bcdfgptv][rl][iu])(?:[aoéè]|e(?=[rnz]))",
    ),
}


def _matches(pattern: regex.Pattern, kinds: str, kind: regex.Pattern) -> Unit:
    """
    Build the unit that counts the matches of `pattern`. The pattern `kind` has a group for each kind of character, and
    `kinds` an example of each, in the same order. Strings of one or two examples distinguish the states.
    """
    endings = [*kinds, *map("".join, itertools.product(kinds, repeat=2))]
    return Learned(lambda text: len(pattern.findall(text)), endings, lambda one: kinds[kind.match(one).lastindex - 1])


def _utf_16() -> Unit:
    return Unit(None, lambda state, units: (units, state), lambda character: 1 + (character > "\uffff"))


def _sms() -> Unit:
    """
    Build the unit of SMS, which counts septets of GSM-7. A character outside GSM-7 would change the encoding of the
    whole message, so constraints forbid it, and it counts 1000.
    """
    cost = {**dict.fromkeys(_GSM_7, 1), **dict.fromkeys(_GSM_7_EXTENSION, 2)}
    return Unit(None, lambda state, units: (units, state, units < 1000), lambda character: cost.get(character, 1000))


def _arial() -> Unit:
    width = {character: units for units, several in _ARIAL.items() for character in several}

    def kind(character: str) -> int:
        base = unicodedata.normalize("NFD", character)[0]
        return 0 if unicodedata.combining(character) else width.get(character, width.get(base, 1000))

    return Unit(None, lambda state, units: (units, state), kind)


def _post() -> Unit:
    """
    Build the unit of posts on X, a sum of weights. A constraint forbids URLs, joined emoji and keycaps, because the
    weight of such a sequence is known only at its end.
    """
    unit = Unit("space", _post_step, _post_kind)

    def count(text: str) -> int:
        text = _JOINED.sub("\U0001f600", text)
        text = _ADDRESS.sub(lambda found: "x" * (23 if found[1] else max(23, len(found[0]))), text)
        return unit.add_up(text)

    unit.count = count
    return unit


def _post_kind(character: str) -> tuple[int, str]:
    """Return the weight of a character, in its NFC form, and its sign: its group in `_SIGN`, or `"other"`."""
    sign = _SIGN.match(character)
    weight = sum(1 if _LIGHT.match(part) else 2 for part in unicodedata.normalize("NFC", character))
    return weight, "other" if sign is None else sign.lastgroup


def _post_step(last: str, kind: tuple[int, str]) -> tuple:
    weight, sign = kind
    if (last, sign) in _JOINS:
        return _JOINS[last, sign]
    if sign == "dot":  # a letter after one dot may be part of an address
        return weight, "dots" if last in ("space", "dot", "dots") else "dot"
    may = sign not in ("selector", "never") and (last, sign) != ("dot", "letter")
    state = sign if sign in _EMOJI or sign == "space" else "other"
    return weight, state, may and not (sign == "joiner" and last in _EMOJI)


def _syllables(language: str) -> Unit:
    """Build the unit of syllables of a language. Characters other than letters and apostrophes separate words."""
    vowels, *rules = _SYLLABLES[language]
    letters = {character for character in "".join(rules) if character.islower()}
    vowel = next((character for character in vowels if character not in letters), vowels[0])
    for sign, meaning in {"V": f"[{vowels}]", "C": f"[^{vowels} ]", "$": "(?![^ ])"}.items():
        rules = [rule.replace(sign, meaning) for rule in rules]
    begins = regex.compile(f"(?:{rules[0]})(*SKIP)(*FAIL)|{rules[1]}")

    def kind(character: str) -> str:
        character = character.lower()
        if character in letters:
            return character
        if unicodedata.normalize("NFD", character)[0] in vowels:
            return vowel
        return "k" if character.isalpha() or character in "'’" else " "  # a consonant that no rule names

    def measure(text: str) -> int:
        return len(begins.findall(f" {text}"))

    kinds = [*sorted(letters), vowel, "k", " "]
    endings = [*kinds, *map("".join, itertools.product(kinds, "aens ")), "es "]
    endings += "ng ing ed es ely io ien lia ria ays".split()
    return Learned(measure, endings, kind, count=lambda text: measure("".join(map(kind, text))))


UNITS: dict[str, Callable[[], Unit]] = {  # append new names at the end: `length_units._CODES` stores their order
    "width": Columns,
    "grapheme": functools.partial(_matches, regex.compile(r"\X"), _CLUSTER_KINDS, _CLUSTER_KIND),
    "utf16": _utf_16,
    "sms": _sms,
    "x": _post,
    "zh_word": functools.partial(_matches, _CHINESE, _CHINESE_KINDS, _CHINESE_KIND),
    **{f"syllable_{language}": functools.partial(_syllables, language) for language in _SYLLABLES},
    "arial": _arial,
}


@functools.cache
def unit_of(name: str) -> Unit:
    """Return the unit `name`, one of `UNITS`, cached, because learning its automaton takes time."""
    unit = UNITS[name]()
    unit.name = name
    return unit
