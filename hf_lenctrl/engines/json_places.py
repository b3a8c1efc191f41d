"""
Functions and classes that read an incomplete JSON text, find the string in which the text ends, and look up the length
limits of this string in a JSON Schema. The module needs no grammar engine.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..lengths import is_integer


LENGTHS = ("minLength", "maxLength")
CALL = 'pass {"type": "object", "properties": {"title": {"type": "string", "maxLength": 40}}, "required": ["title"]}'
# keywords whose value is a schema, a dictionary of schemas, or a list of schemas
_ONE: tuple[str, ...] = (
    "additionalProperties",
    "items",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
    "additionalItems",
)
_ONE += ("unevaluatedItems", "unevaluatedProperties")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SAME = ("allOf", "anyOf", "oneOf")  # schemas of these keywords apply to the value itself
# schemas of these keywords apply to values inside the value
_BELOW = ("properties", "additionalProperties", "items", "prefixItems")
# The states of a finite automaton that reads a string: 0 between characters, 1 after a backslash, 2 to 6 inside
# \uXXXX, 7 to 13 inside the UTF-8 bytes of a character.
PLAIN, ESCAPED, FIRST_DIGIT, AFTER_D, AFTER_DIGIT, ONE_MORE, TWO_MORE, THREE_MORE = 0, 1, 2, 3, 4, 11, 12, 13
STATES = range(14)
_NEXT_DIGIT = {AFTER_D: 5, AFTER_DIGIT: 5, 5: 6, 6: PLAIN}
# state -> first and last valid next byte, and the next state; U+D800 to U+DFFF and overlong forms are invalid UTF-8
_CONTINUES = {
    7: (0x80, 0x9F, ONE_MORE),
    8: (0xA0, 0xBF, ONE_MORE),
    9: (0x90, 0xBF, TWO_MORE),
    10: (0x80, 0x8F, TWO_MORE),
    ONE_MORE: (0x80, 0xBF, PLAIN),
    TWO_MORE: (0x80, 0xBF, ONE_MORE),
    THREE_MORE: (0x80, 0xBF, TWO_MORE),
}
_BEGINS = {0xED: 7, 0xE0: 8, 0xF0: 9, 0xF4: 10}
_BEGINS |= dict.fromkeys(range(0xC2, 0xE0), ONE_MORE) | dict.fromkeys([*range(0xE1, 0xED), 0xEE, 0xEF], TWO_MORE)
_BEGINS |= dict.fromkeys(range(0xF1, 0xF4), THREE_MORE)

Place = tuple[str, ...]  # JSON pointers of the schemas that apply to a value


class Bounds(NamedTuple):
    """The length limits of a string in characters; `high=None` means no upper limit."""

    low: int = 0
    high: int | None = None


class Places:
    """
    The places of values in a JSON Schema, and the length limits of a string at each place. A place is the tuple of
    JSON pointers of all schemas that apply to the value.

    Args:
        schema (`dict`): A JSON Schema. The attribute `plain` is the same schema without `minLength` and `maxLength`.

    Raises:
        `TypeError`, `ValueError`: if the schema is not a dictionary; if a `$ref` does not name a schema of the same
            file; if `minLength` or `maxLength` is not an integer of at least 0; if no string can keep both limits of a
            place; if a limit is inside the value of an unsupported keyword (`patternProperties`, `not`, ...); or if a
            limit is combined with `pattern`, `format`, or texts in `enum` and `const`.

    Example:

    ```python
    >>> from hf_lenctrl.engines.json_places import Places
    >>> places = Places({"properties": {"title": {"type": "string", "maxLength": 40}}})
    >>> places.bounds(places.child(places.root, "title"))
    Bounds(low=0, high=40)

    ```
    """

    def __init__(self, schema: dict[str, Any]):
        if not isinstance(schema, dict):
            raise TypeError(f"a JSON Schema is a dict, got {schema!r}; {CALL}")
        self.schemas = dict(_schemas(schema, "#"))
        self._check_lengths()
        self.root = self._place(["#"])
        places, reached = [self.root], set[str]()
        for place in places:  # a breadth-first search, which appends reachable places to the list
            reached |= set(place)
            self._check(place)
            places += [new for new in dict.fromkeys(self._children(place)) if new not in places]
        self._check_followed(reached)
        self.plain = copy.deepcopy(schema)
        for _, node in _schemas(self.plain, "#"):
            for name in LENGTHS:
                node.pop(name, None)

    def child(self, place: Place, key: str | int) -> Place:
        """
        Return the place of a value inside the object or list at `place`. `key` is the key in the object, or the index
        in the list.
        """
        found = []
        for pointer in place:
            node = self.schemas[pointer]
            if isinstance(key, str):
                known = key in node.get("properties", {})
                found.append(f"{pointer}/properties/{_escape(key)}" if known else f"{pointer}/additionalProperties")
            else:
                first = "prefixItems" if "prefixItems" in node else "items"
                listed = schemas if isinstance(schemas := node.get(first), list) else []
                rest = "items" if first == "prefixItems" else "additionalItems" if listed else "items"
                found.append(f"{pointer}/{first}/{key}" if key < len(listed) else f"{pointer}/{rest}")
        return self._place(found)

    def bounds(self, place: Place) -> Bounds:
        """
        Return the strictest length limits of a place. A string within these limits is within the limits of all schemas
        of the place.
        """
        nodes = [self.schemas[pointer] for pointer in place]
        high = [node["maxLength"] for node in nodes if "maxLength" in node]
        return Bounds(max([node.get("minLength", 0) for node in nodes], default=0), min(high, default=None))

    def _place(self, pointers: list[str]) -> Place:
        """
        Build a place from JSON pointers of schemas. Add the schemas to which `$ref`, `allOf`, `anyOf` and `oneOf` in
        these schemas lead. Skip pointers at which there is no dictionary, such as the schema `true`. Raise
        `ValueError` if a `$ref` leads to no schema.
        """
        found: dict[str, None] = {}
        waiting = list(pointers)
        while waiting:
            pointer = waiting.pop(0)
            node = self.schemas.get(pointer)
            if node is None or pointer in found:
                continue
            found[pointer] = None
            if isinstance(refers := node.get("$ref"), str):
                if (target := unquote(refers)) not in self.schemas:
                    raise ValueError(f"$ref names a schema of the same file, got {refers!r}; pass '#/$defs/name'")
                waiting.append(target)
            waiting += [f"{pointer}/{name}/{i}" for name in _SAME for i in range(len(node.get(name, ())))]
        return tuple(sorted(found))

    def _children(self, place: Place) -> Iterator[Place]:
        nodes = [self.schemas[pointer] for pointer in place]
        for key in {key for node in nodes for key in node.get("properties", {})} | {""}:
            yield self.child(place, key)
        lists = [node[name] for node in nodes for name in ("prefixItems", "items") if isinstance(node.get(name), list)]
        for index in range(1 + max(map(len, lists), default=0)):
            yield self.child(place, index)

    def _check_lengths(self) -> None:
        for pointer, node in self.schemas.items():
            for name in LENGTHS:
                value = node.get(name, 0)
                if not is_integer(value) or value < 0:
                    raise ValueError(f"{name} at {pointer} must be an int of at least 0, got {value!r}; {CALL}")

    def _check(self, place: Place) -> None:
        low, high = self.bounds(place)
        if high is not None and low > high:
            raise ValueError(f"no string at {' and '.join(place)} has {low} characters at least and {high} at most")
        if (low, high) == (0, None):
            return
        for pointer in place:
            node = self.schemas[pointer]
            for name in ("pattern", "format", "enum", "const"):
                values = node.get(name, ())
                texts = [values] if isinstance(values, str) else values if isinstance(values, list) else []
                if any(isinstance(text, str) for text in texts):
                    rule = f"a length does not work with {name!r}, which may leave no string of that length"
                    raise ValueError(f"{rule}, got {values!r} at {pointer}; leave one of them out")

    def _check_followed(self, reached: set[str]) -> None:
        for pointer in reached:
            for name in self.schemas[pointer].keys() - {*_SAME, *_BELOW, "$defs", "definitions"}:
                below = [f"{pointer}/{name}"]
                for start in below:
                    inside = [p for p in self.schemas if p == start or p.startswith(f"{start}/")]
                    below += [p for p in (*inside, *self._place(inside)) if p not in below]
                for p in below:
                    if any(length in self.schemas.get(p, {}) for length in LENGTHS):
                        rule = f"a length below {name!r} cannot be kept, got one at {p}"
                        raise ValueError(f"{rule}; write it below 'properties', 'items' or '$defs'")


def _schemas(node: Any, pointer: str) -> Iterator[tuple[str, dict]]:
    """
    Yield a pair of a JSON pointer and a schema, for the schema `node` at `pointer` and for all schemas inside it. Skip
    `enum`, `const` and `default`, which hold no schemas.
    """
    if not isinstance(node, dict):
        return
    yield pointer, node
    for name in _ONE:
        yield from _schemas(node.get(name), f"{pointer}/{name}")
    for name in _NAMED:
        if isinstance(node.get(name), dict):
            for key, value in node[name].items():
                yield from _schemas(value, f"{pointer}/{name}/{_escape(key)}")
    for name in _LISTED:
        if isinstance(node.get(name), list):
            for i, value in enumerate(node[name]):
                yield from _schemas(value, f"{pointer}/{name}/{i}")


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def read_character(state: int, byte: int) -> int:
    """
    Return the state of the string automaton (see `STATES`) after one more byte of a JSON string; -1 if the byte is
    invalid in `state`. Escaped surrogates (`\\ud800` to `\\udfff`) are invalid, because a single surrogate is no
    character, and a pair can be written as the character itself.
    """
    if state == PLAIN:
        if byte >= 0x80:
            return _BEGINS.get(byte, -1)
        return ESCAPED if byte == 0x5C else PLAIN if byte >= 0x20 else -1
    if state in _CONTINUES:
        low, high, after = _CONTINUES[state]
        return after if low <= byte <= high else -1
    if state == ESCAPED:
        return FIRST_DIGIT if byte == 0x75 else PLAIN if byte in b'"\\/bfnrt' else -1
    if byte not in b"0123456789abcdefABCDEF" or (state == AFTER_D and byte not in b"01234567"):
        return -1
    if state == FIRST_DIGIT:
        return AFTER_D if byte in b"dD" else AFTER_DIGIT
    return _NEXT_DIGIT[state]


class Reader:
    """
    A reader of a JSON text, byte by byte. It tracks whether the text is inside a string, the place of the string in
    the schema, and the number of its characters so far.

    A character is counted at its first byte, an escape at its backslash. The reader does not check the text, which
    must be the beginning of valid JSON.
    """

    def __init__(self, places: Places):
        self.places = places
        self.stack: list[tuple[Place, str | int]] = []  # place and last key or index of each open object or list
        self.key: bytes | None = None  # the key of the innermost object, while it is read
        self.expects_key = False
        self.inside, self.state, self.count = False, PLAIN, 0
        self.bounds = Bounds()  # limits of the current string
        # number of bytes so far; position of the last string's first byte; position of the last closing quote
        self.position = self.opened = self.closed = 0

    def copy(self) -> "Reader":
        """Return an independent copy of the reader."""
        other = copy.copy(self)
        other.stack = list(self.stack)
        return other

    @property
    def where(self) -> tuple:
        """
        Return two values, which determine the tokens that the length limits allow outside of strings: (1) the place
        and the last key or index of each open object or list; (2) whether the next string is a key.
        """
        return (tuple(self.stack), self.expects_key)

    def read(self, data: bytes) -> None:
        """Read the next bytes of the text."""
        for byte in data:
            if self.inside:
                self._inside(byte)
            else:
                self._outside(byte)
            self.position += 1

    def _value(self) -> Place:
        """Return the place of the value that may begin after the text so far."""
        return self.places.child(*self.stack[-1]) if self.stack else self.places.root

    def _inside(self, byte: int) -> None:
        if byte == 0x22 and self.state == PLAIN:
            self.inside, self.closed = False, self.position
            if self.key is not None:
                self.stack[-1] = (self.stack[-1][0], json.loads(b'"' + self.key + b'"'))
                self.key = None
            return
        self.count += self.state == PLAIN
        self.state = max(read_character(self.state, byte), PLAIN)
        if self.key is not None:
            self.key += bytes([byte])

    def _outside(self, byte: int) -> None:
        if byte == 0x22:
            self.inside, self.state, self.count, self.opened = True, PLAIN, 0, self.position + 1
            self.key = b"" if self.expects_key else None
            self.bounds = Bounds() if self.expects_key else self.places.bounds(self._value())
            self.expects_key = False
        elif byte == 0x7B:
            self.stack.append((self._value(), ""))
            self.expects_key = True
        elif byte == 0x5B:
            self.stack.append((self._value(), 0))
        elif byte in b"}]" and self.stack:
            self.stack.pop()
            self.expects_key = False
        elif byte == 0x2C and self.stack:
            place, key = self.stack[-1]
            if isinstance(key, int):
                self.stack[-1] = (place, key + 1)
            self.expects_key = isinstance(key, str)
