"""
Other ways to say the same in English, shorter or longer: "I'm" and "I am", "ten minutes" and "10 minutes".

A model that must meet a length learns here which words it may exchange. A rule is a group of phrases that replace each
other in a context, two regular expressions: the text before and the text after. We chose phrases that keep meaning
and grammar where their context fits; two sentences in three have none.
"""

import random
import re


SUBJECT = (
    r" (?:you|we|I|he|she|it|they|the|there|that|this|those|these|[A-Z]|your|my|his|her|our|their|any\w*|every\w*|"
    r"some\w*)"
)
WORD, START = r"(?= [a-z0-9])", r"(?:^|(?<=[.!?] ))"
PLACES = r"(?= (?:a|an|the|not|my|your|his|her|our|their|in|at|on|too|very|so|no|still|going|[a-z]+ing)\b)"
DONE = r"(?= (?:been|never|already|just|always|had|seen|done|lost|made|heard|read|met|decided|forgotten|changed)\b)"
DO = r"(?= (?:be|have|do|get|take|make|come|buy|help|need|see|tell|leave|stay|happen|rain|win|eat|play|give|meet)\b)"
COUNTED = (
    r"(?= (?:minutes|hours|days|years|people|dollars|euros|kilometers|miles|degrees|percent|grams|pages|seconds|weeks|"
    r"months|times|meters|children|books|students)\b)"
)
CLAUSE = r"(?= (?:he|she|we|they|I|you|it's|he's|she's|you're|Tom|Mary|this|there)\b)"
CHANGED = (
    r"(?= (?:deleted|saved|created|updated|removed|added|changed|sent|installed|disabled|enabled|completed|canceled|"
    r"moved|stopped|blocked|modified|copied|closed)\b)"
)

# phrases | before | after
_RULES: list[tuple[str, str, str]] = [
    *((f"{who}'re|{who} are", r"\b", r"(?= (?:not|[a-z]+ing|a|the|so|too|very|all|my|in|at|going)\b)") for who in
      ("you", "we", "they")),
    ("I'm|I am", r"\b", WORD),
    *((f"{who}'ll|{who} will", r"\b", WORD) for who in ("I", "you", "he", "she", "we", "they", "it")),
    *((f"{who}'ve|{who} have", r"\b", DONE) for who in ("I", "you", "we", "they")),
    *((f"{who}'s|{who} is", r"\b", PLACES) for who in ("he", "she", "it", "that", "there")),
    ("what's|what is", r"\b", r"(?= (?:the|your|this|that|his|her|my)\b)"),
    ("where's|where is", r"\b", r"(?= (?:the|your|this|that|his|her|my)\b)"),
    *((f"{verb}n't|{verb} not", r"\b", rf"(?!{SUBJECT}\b){WORD}") for verb in
      ("do", "does", "did", "could", "would", "is", "are", "was", "were", "have", "has", "had", "should")),
    ("can't|cannot", r"\b", rf"(?!{SUBJECT}\b){WORD}"),
    ("won't|will not", r"\b", rf"(?!{SUBJECT}\b){WORD}"),
    *((f"{verb}'ve|{verb} have", r"\b", r"(?= [a-z]+(?:ed|en|ne|wn|ght)\b)") for verb in ("should", "could", "would")),
    ("I want to|I'd like to|I would like to", r"\b", WORD),
    ("we want to|we'd like to|we would like to", r"\b", WORD),
    ("I'd like|I would like", r"\b", r"(?= (?:a|an|some|the|to)\b)"),
    ("do you want to|would you like to", START, WORD),
    ("do you want|would you like", START, r"(?= (?:a|an|some)\b)"),
    ("could you|can you", START, WORD),
    ("need to|have to", r"(?<=[Iuey] )", WORD),
    ("needs to|has to", r"(?<=[a-z] )", WORD),
    *((f"{who} going to|{other} will", r"\b", DO) for who, other in
      (("he is", "he"), ("he's", "he"), ("she is", "she"), ("she's", "she"), ("it is", "it"), ("it's", "it"),
       ("I am", "I"), ("I'm", "I"), ("we are", "we"), ("we're", "we"), ("they are", "they"), ("you are", "you"))),
    *((f"{start}|{start} that", r"\b", CLAUSE) for start in
      ("I think", "I know", "I hope", "I believe", "he said", "she said", "Tom said", "Mary said", "told me", "I knew",
       "I thought", "I'm sure", "I'm afraid", "told Tom", "told Mary")),
    ("I think|I believe", r"\b", CLAUSE),
    *((f"{word}one|{word}body", r"\b", r"\b(?!')") for word in ("every", "some", "any")),
    ("no one|nobody", r"\b", r"\b(?!')"),
    ("maybe|perhaps", r"\b", r"\b"),
    ("right away|immediately|at once", r"(?<=[a-z] )", r"(?=[.!?])"),
    ("right now|at the moment", r"(?<=[a-z] )", r"(?=[.!?])"),
    ("a lot of|lots of|plenty of", r"(?<!quite )(?<!such )\b", WORD),
    ("because of|due to", r"\b", r"(?= (?:the|a|his|her|my|their|bad|heavy)\b)"),
    ("until|till", r"(?<=[a-z] )", WORD),
    ("almost|nearly", r"(?<=[a-z] )", r"(?= (?:all|every|ten|always|done|finished|impossible|two|three)\b)"),
    ("too|as well", r"(?<=[a-z] )", r"(?=[.!?]$)"),
    ("often|frequently", r"(?<=[a-z] )", WORD),
    ("very|really|extremely", r"(?<=is |'s |as |re |'m |am |be )", r"(?= (?!much|well|few|little|many|best)[a-z])"),
    ("kids|children", r"\b", r"\b"),
    ("this evening|tonight", r"\b", r"(?=[.!?])"),
    ("each|every", r"\b", r"(?= (?:day|year|week|month|morning|time)\b)"),
    ("each other|one another", r"\b", r"\b"),
    ("close to|near", r"(?<=is |es |ed )", WORD),
    ("next to|beside", r"\b", r"(?= (?:the|him|her|me|my|his)\b)"),
    ("across from|opposite", r"\b", r"(?= (?:the|him|her|me|my|his)\b)"),
    ("about|around", r"(?<=[a-z] )", r"(?= (?:\d+|ten|twenty|thirty|fifty)\b)"),
    ("more than|over", r"(?<=[a-z] )", r"(?= (?:\d+|ten|twenty|thirty|fifty|a hundred|a million)\b)"),
    ("all of the|all the", r"\b", WORD),
    ("thanks|thank you", START, r"(?= (?:for|very much)\b)"),
    ("hello|hi", START, r"(?=[,.!])"),
    ("for example|for instance", r"\b", r"\b"),
    ("hard|difficult", r"(?<=is |'s |as |oo |ry )", r"(?= to\b)"),
    ("sick|ill", r"(?<=is |'s |'m |am |as |en )", r"(?=[.!?]| today)"),
    *((f"{one} photo|{one} picture|{one} photograph", r"\b", r"(?= of|[.!?])") for one in ("a", "the", "this")),
    *((f"{one} movie|{one} film", r"\b", r"\b") for one in ("a", "the", "this", "that")),
    *((f"{one} present|{one} gift", r"\b", r"(?= for|[.!?])") for one in ("a", "the", "this")),
    ("bicycle|bike", r"\b", r"\b"),
    ("refrigerator|fridge", r"\b", r"\b"),
    ("phone|telephone", r"(?:(?<=the )|(?<=my ))", r"(?= number| rang| is|[.!?])"),
    ("TV|television", r"(?<=[a-z] )", r"\b"),
    ("starts|begins", r"\b", r"(?= (?:at|in|on|tomorrow)\b)"),
    ("getting|becoming", r"(?<=s |m |e )", r"(?= (?:more|worse|better|colder|warmer|old|dark|tired)\b)"),
    *((f"{word}|{digits}", r"(?<=[a-z,] )", COUNTED) for word, digits in
      (("two", "2"), ("three", "3"), ("four", "4"), ("five", "5"), ("six", "6"), ("seven", "7"), ("eight", "8"),
       ("nine", "9"), ("ten", "10"), ("eleven", "11"), ("twelve", "12"), ("fifteen", "15"), ("twenty", "20"),
       ("thirty", "30"), ("forty", "40"), ("fifty", "50"), ("sixty", "60"), ("ninety", "90"))),
    *((f"{hour}|{hour} o'clock", r"(?<=at )", r"(?=[.!?])") for hour in
      ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")),
    ("percent|%", r"(?<=\d )", r"\b"),
    # rules for texts of programs
    ("unable to|could not|couldn't|cannot|can't|failed to", r"^", WORD),
    ("select|choose", r"^", r"(?= (?:a|an|the|your|one|all|which|how)\b)"),
    ("show|display", r"^", r"(?= (?:a|all|the|only|more|your)\b)"),
    ("enter|type|type in", r"^", r"(?= (?:a|an|the|your)\b)"),
    ("delete|remove", r"^", r"(?= (?:a|an|the|this|all|your)\b)"),
    ("are you sure you want to|do you really want to|do you want to", START, WORD),
    ("error occurred|error has occurred", r"\b", r"\b"),
    ("has been|was", r"(?<=[a-z] )", CHANGED),
    ("have been|were", r"(?<=[a-z] )", CHANGED),
    ("log in|sign in", r"\b", r"\b"),
    ("search for|look for", START, r"(?= (?:a|an|the|new|more|updates|files)\b)"),
    ("click on|click", r"\b", r"(?= the\b)"),
    ("please try again|try again", START, r"\b"),
]  # fmt: skip


def _compiled() -> list[tuple[re.Pattern, list[str]]]:
    rules = []
    for phrases, before, after in _RULES:
        options = phrases.split("|")
        longest_first = "|".join(re.escape(option) for option in sorted(options, key=len, reverse=True))
        rules.append((re.compile(f"{before}(?i:({longest_first})){after}"), options))
    return rules


RULES = _compiled()


def _exchanged(text: str, rule: tuple[re.Pattern, list[str]], draw: random.Random) -> str:
    """Replace each match of a rule by another phrase of the rule."""

    def other(found: re.Match) -> str:
        new = draw.choice([option for option in rule[1] if option.lower() != found[1].lower()])
        return new[:1].upper() + new[1:] if found[1][0].isupper() else new

    return rule[0].sub(other, text)


def reword(text: str, draw: random.Random, most: int = 3) -> str | None:
    """
    Exchange one to `most` phrases of the text; return `None` if no rule fits.

    Args:
        text (`str`): English.
        draw (`random.Random`): Chooses rules and phrases.
        most (`int`, *optional*, defaults to 3): Rules that are used.
    """
    fitting = [rule for rule in RULES if rule[0].search(text)]
    new = text
    for rule in draw.sample(fitting, min(len(fitting), draw.randrange(1, most + 1))):
        new = _exchanged(new, rule, draw)
    return None if new == text else new
