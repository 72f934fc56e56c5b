"""Random JSON schemas and values for schema_oracle.py: combinations of keywords that are seldom written by hand.

Only what jsonschema decides as JSON Schema says: no \\w, \\d or $ before a line break (Python's differ from ECMAScript's), and divisors that floats hold exactly.
"""
KEYS = ["a", "b", "c", "x y", "é", '"q', "\\", "$ref", "a/b", "~t", "ab", ""]
STRINGS = ["", "a", "ab", "abc", "foo", "é", "😀", 'a"b', "\\", "2020-01-01", "x1", "AB", "0", "null"]
PATTERNS = ["^a", "b$", "^[a-c]{1,3}$", "[0-9]", "^(foo|bar)", "^.{2}$", "^(?!foo)", "^[a-zA-Z]+$", "a|b", "^$", "^[^a]*$", "^(?=.*[0-9]).{2,5}$"]
FORMATS = ["date", "uuid", "ipv4", "email", "date-time", "duration"]
NUMBERS = [0, 1, -1, 2, 3, 5, 10, 100, 0.5, -2.5, 1.25, 7, -0.0]
DEFINITIONS = {"n": "n", "a/b": "a~1b", "~t": "~0t", "x y": "x%20y", "é": "%C3%A9"}


def value(rng, depth=0):
    kind = rng.randrange(6 if depth < 3 else 4)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind < 4:
        return rng.choice(NUMBERS if kind == 1 else STRINGS)
    if kind == 4:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def changed(rng, data):
    """Some parts of the value replaced, added or removed."""
    if rng.random() < 0.2:
        return value(rng)
    if isinstance(data, list):
        data = [changed(rng, item) if rng.random() < 0.4 else item for item in data] + ([data[0]] if data and rng.random() < 0.2 else [])
        return data[rng.randrange(2):]
    if isinstance(data, dict):
        data = {k: changed(rng, v) if rng.random() < 0.4 else v for k, v in data.items() if rng.random() < 0.9}
        return {**data, rng.choice(KEYS): value(rng)} if rng.random() < 0.2 else data
    if isinstance(data, str):
        return rng.choice([data + "a", data[1:], "a" + data])
    return data if data is None or isinstance(data, bool) else data + rng.choice([-1, 1, 0.5])


class RandomSchemas:
    def __init__(self, rng):
        self.rng = rng
        self.names = rng.sample(sorted(DEFINITIONS), 2)

    def document(self):
        out = self.schema(0)
        return {**out, "$defs": {name: self.schema(2) for name in self.names}} if isinstance(out, dict) else out

    def some(self, out, likelihood, **keywords):
        for name, make in keywords.items():
            if self.rng.random() < likelihood:
                out[name] = make() if callable(make) else self.rng.choice(make)

    def schema(self, depth):
        rng = self.rng
        if rng.random() < 0.05:
            return rng.random() < 0.7
        if depth > 3:
            return rng.choice([{"type": "string"}, {"type": "integer"}, True, {"const": 1}, {"type": "null"}])
        out = {}
        kinds = rng.choice([["object"], ["array"], ["string"], ["number"], ["object", "any"], ["array", "any"], ["number", "any"], ["string", "any"], ["any"], ["values"], ["ref"]])
        for kind in kinds:
            getattr(self, kind)(out, lambda: self.schema(depth + 1))
        return out

    def object(self, out, sub):
        rng = self.rng
        self.some(out, 0.9, type=["object", "object", ["object", "null"], ["object", "array"]])
        self.some(out, 0.8, properties=lambda: {rng.choice(KEYS): sub() for _ in range(rng.randrange(4))})
        self.some(out, 0.5, required=lambda: rng.sample(sorted({*out.get("properties", {}), "a", "b"}), rng.randrange(3)), additionalProperties=lambda: rng.choice([True, False, sub()]))
        self.some(out, 0.15, patternProperties=lambda: {rng.choice(PATTERNS): sub()}, propertyNames=lambda: rng.choice([{"pattern": rng.choice(PATTERNS)}, {"maxLength": 2}, {"enum": KEYS[:5]}]),
                  minProperties=[0, 1, 2], maxProperties=[0, 1, 2, 3], dependentRequired=lambda: {rng.choice(KEYS[:4]): [rng.choice(KEYS[:4])]},
                  dependentSchemas=lambda: {rng.choice(KEYS[:4]): sub()}, unevaluatedProperties=lambda: rng.choice([False, sub()]))

    def array(self, out, sub):
        rng = self.rng
        self.some(out, 0.9, type=["array"])
        self.some(out, 0.7, items=sub)
        self.some(out, 0.3, prefixItems=lambda: [sub() for _ in range(rng.randrange(1, 3))], minItems=[0, 1, 2], maxItems=[0, 1, 2, 3, 4])
        self.some(out, 0.15, contains=sub, uniqueItems=[True], unevaluatedItems=lambda: rng.choice([False, sub()]))
        if "contains" in out:
            self.some(out, 0.3, minContains=[0, 1, 2], maxContains=[1, 2])

    def string(self, out, sub):
        self.some(out, 0.9, type=["string"])
        self.some(out, 0.3, minLength=[0, 1, 2, 3], maxLength=[0, 1, 2, 3, 4, 5], pattern=PATTERNS)
        self.some(out, 0.15, format=FORMATS)

    def number(self, out, sub):
        self.some(out, 0.9, type=["integer", "number"])
        self.some(out, 0.3, minimum=NUMBERS, maximum=NUMBERS)
        self.some(out, 0.2, exclusiveMinimum=NUMBERS, exclusiveMaximum=NUMBERS, multipleOf=[1, 2, 3, 0.5, 5, 0.25, 10])

    def any(self, out, sub):
        rng = self.rng
        keyword = rng.choice(["anyOf", "anyOf", "oneOf", "allOf", "not", "if"])
        if keyword not in ("not", "if"):
            out[keyword] = [sub() for _ in range(rng.randrange(1, 4))]
            return
        out[keyword] = sub()
        if keyword == "if":
            self.some(out, 0.7, then=sub, **{"else": sub})

    def values(self, out, sub):
        if self.rng.random() < 0.5:
            out["const"] = value(self.rng)
        else:
            out["enum"] = [value(self.rng) for _ in range(self.rng.randrange(1, 5))]

    def ref(self, out, sub):
        out["$ref"] = "#/$defs/" + DEFINITIONS[self.rng.choice(self.names)]
        self.some(out, 0.3, minLength=[1], maxProperties=[2])

