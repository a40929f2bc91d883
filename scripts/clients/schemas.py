"""JSON Schemas like those of real requests: configuration files, events, API bodies, tools, and
corner cases.
"""


def record(required=None, more=False, **properties):
    """An object with these properties, all required by default."""
    return {
        "type": "object", "properties": properties, "required": list(properties) if required is None else required,
        "additionalProperties": more,
    }


def text(**keys):
    return {"type": "string", **keys}


def number(**keys):
    return {"type": "number", **keys}


def integer(**keys):
    return {"type": "integer", **keys}


def list_of(items, **keys):
    return {"type": "array", "items": items, **keys}


SHORT = text(maxLength=8)
ADDRESS = record(street=SHORT, number=integer(minimum=1, maximum=999), zip=text(pattern="^[0-9]{5}$"))

# Schemas by name. Each is valid.
GOOD = {
    "person": record(name=text(maxLength=12), age=integer(minimum=0, maximum=120)),
    "person with optional parts": record(["name"], name=SHORT, nick=SHORT, born=text(format="date")),
    "address": ADDRESS,
    "nested": record(who=record(name=SHORT, home=ADDRESS), tags=list_of(SHORT, maxItems=3)),
    "deeply nested": record(a=record(b=record(c=record(d=record(e=record(f=integer())))))),
    "package file": record(
        ["name", "version"], name=text(pattern="^[a-z][a-z0-9-]{0,10}$"), version=text(pattern=r"^\d+\.\d+\.\d+$"), private={"type": "boolean"},
        keywords=list_of(SHORT, maxItems=2),
    ),
    "web hook": record(event={"enum": ["push", "pull_request", "issues"]}, id=integer(minimum=1), sender=record(login=SHORT, id=integer())),
    "build job": record(
        ["runs-on", "steps"], **{"runs-on": {"enum": ["linux", "mac", "windows"]}, "steps": list_of(record(["run"], run=SHORT, name=SHORT), minItems=1, maxItems=2)}
    ),
    "weather tool": record(city=text(maxLength=10), unit={"enum": ["celsius", "fahrenheit"]}),
    "search tool": record(["query"], query=SHORT, top_k=integer(minimum=1, maximum=50), filters=record([], since=text(format="date"), lang=text(minLength=2, maxLength=2))),
    "calendar tool": record(title=SHORT, start=text(format="date-time"), minutes=integer(multipleOf=15, minimum=15, maximum=120)),
    "calls of tools": list_of({"anyOf": [record(name={"const": "add"}, arguments=record(a=number(), b=number())), record(name={"const": "stop"}, arguments=record())]}, minItems=1, maxItems=2),
    "point in a map": record(type={"const": "Point"}, coordinates=list_of(number(minimum=-180, maximum=180), minItems=2, maxItems=2)),
    "geometry": {"anyOf": [record(type={"const": "Point"}, at=list_of(integer(), minItems=2, maxItems=2)), record(type={"const": "Line"}, at=list_of(list_of(integer(), minItems=2, maxItems=2), minItems=2, maxItems=3))]},
    "invoice": record(number=text(pattern="^INV-[0-9]{4}$"), lines=list_of(record(sku=SHORT, count=integer(minimum=1, maximum=99), price=number(minimum=0)), minItems=1, maxItems=2), paid={"type": "boolean"}),
    "log line": record(["level", "message"], level={"enum": ["debug", "info", "warn", "error"]}, message=SHORT, fields={"type": "object", "additionalProperties": {"type": ["string", "number"], "maxLength": 5}, "maxProperties": 2}),
    "classification": record(label={"enum": ["positive", "negative", "neutral"]}, confidence=number(minimum=0, maximum=1)),
    "list of entities": list_of(record(text=SHORT, kind={"enum": ["PER", "LOC", "ORG"]}, begin=integer(minimum=0)), maxItems=3),
    "answer with its reason": record(reason=text(maxLength=20), answer={"enum": ["A", "B", "C", "D"]}),
    "quiz": record(question=SHORT, options=list_of(SHORT, minItems=2, maxItems=4), right=integer(minimum=0, maximum=3)),
    "settings": record([], theme={"enum": ["light", "dark"]}, font=record([], size=integer(minimum=8, maximum=32), family=SHORT), tabs={"type": "boolean"}),
    "environment": {"type": "object", "patternProperties": {"^[A-Z]{1,3}$": SHORT}, "additionalProperties": False, "maxProperties": 2},
    "dictionary of numbers": {"type": "object", "additionalProperties": integer(), "maxProperties": 2},
    "tree": {"$defs": {"node": record(["value"], value=integer(), left={"$ref": "#/$defs/node"}, right={"$ref": "#/$defs/node"})}, "$ref": "#/$defs/node"},
    "linked list": {"$defs": {"item": record(value=SHORT, next={"anyOf": [{"$ref": "#/$defs/item"}, {"type": "null"}]})}, "$ref": "#/$defs/item"},
    "mutual references": {"definitions": {"a": record([], b={"$ref": "#/definitions/b"}), "b": record([], a={"$ref": "#/definitions/a"}, x=integer())}, "$ref": "#/definitions/a"},
    "all of two": {"allOf": [record(["a"], more=True, a=integer()), {"type": "object", "properties": {"b": SHORT}, "required": ["b"]}], "maxProperties": 2},
    "one of by a constant": {"oneOf": [record(kind={"const": "cat"}, lives=integer(minimum=0, maximum=9)), record(kind={"const": "dog"}, good={"type": "boolean"})]},
    "any of types": {"anyOf": [integer(), {"type": "null"}, {"type": "boolean"}]},
    "types as a list": record(value={"type": ["integer", "null"]}),
    "nullable text": record(note={"anyOf": [text(maxLength=5), {"type": "null"}]}),
    "constant": {"const": "yes"},
    "constant object": {"const": {"a": [1, 2, {"b": None}], "c": "x y"}},
    "constant number": {"const": -12.5},
    "enum of mixed types": {"enum": [1, "two", None, True, [3], {"four": 4}]},
    "enum of texts with quotes": {"enum": ['say "hi"', "back\\slash", "tab\t", "line\n", "ü", "🦀", ""]},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "integer": integer(),
    "integer in a range": integer(minimum=-7, maximum=1234),
    "integer above": integer(exclusiveMinimum=99, maximum=100000),
    "integer below": integer(minimum=-300, exclusiveMaximum=-10),
    "multiple of five": integer(multipleOf=5, minimum=0, maximum=1000),
    "number": number(),
    "number in a range": number(minimum=0.5, maximum=2.25),
    "number between 0 and 1": number(exclusiveMinimum=0, exclusiveMaximum=1),
    "text": text(maxLength=10),
    "text of a length": text(minLength=3, maxLength=5),
    "text by a pattern": text(pattern="^(foo|ba[rz])+$", maxLength=12),
    "text by a class": text(pattern=r"^[^\s\"]{2,6}$"),
    "hexadecimal": text(pattern="^#[0-9a-fA-F]{6}$"),
    "phone number": text(pattern=r"^\+[1-9]\d{6,10}$"),
    "date": text(format="date"),
    "time": text(format="time"),
    "date and time": text(format="date-time"),
    "uuid": text(format="uuid"),
    "e-mail": text(format="email", maxLength=30),
    "ipv4": text(format="ipv4"),
    "array of booleans": list_of({"type": "boolean"}, minItems=2, maxItems=4),
    "empty array": list_of(integer(), maxItems=0),
    "array of arrays": list_of(list_of(integer(minimum=0, maximum=9), minItems=2, maxItems=2), minItems=2, maxItems=2),
    "tuple": {"type": "array", "prefixItems": [integer(), SHORT, {"type": "boolean"}], "items": False, "minItems": 3},
    "tuple with a rest": {"type": "array", "prefixItems": [{"const": "sum"}], "items": integer(minimum=0, maximum=99), "minItems": 1, "maxItems": 4},
    "empty object": record(),
    "key with odd letters": record(**{"a b": integer(), "ü\"\\": SHORT, "": {"type": "null"}}),
    "many properties": record([], **{f"key_{n}": integer(minimum=0, maximum=9) for n in range(20)}),
    "many required": record(**{f"k{n}": {"type": "boolean"} for n in range(20)}),
    "many words": {"enum": [f"word number {n * n}" for n in range(100)]},
    "titles and examples are no rules": {"title": "T", "description": "d", "examples": [1], "default": 3, **integer(minimum=0, maximum=99)},
    "reference beside keys": {"$defs": {"n": integer(minimum=0, maximum=99)}, **record(a={"$ref": "#/$defs/n", "description": "an a"})},
    "anything": {"type": "object", "maxProperties": 1},
    "true": True,
}

# Schemas by name. Each is invalid or has no valid text, which must be an error.
BAD = {
    "unknown type": {"type": "hiccup"},
    "type that is no text": {"type": 123},
    "false": False,
    "broken reference": {"$ref": "#/$defs/nothing"},
    "broken pattern": {"type": "string", "pattern": "(["},
    "empty range": {"type": "integer", "minimum": 5, "maximum": 4},
    "empty length": {"type": "string", "minLength": 5, "maxLength": 4},
    "empty enum": {"enum": []},
    "a number for a schema": {"type": "object", "properties": {"a": 5}},
}
