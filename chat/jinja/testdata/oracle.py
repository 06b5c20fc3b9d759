"""Makes the expected renders of this folder with Python's jinja2 (3.1.6).

usage: python3 oracle.py snippets > snippets.jsonl
       python3 oracle.py templates DIR contexts.json > renders.jsonl
Settings are those of Hugging Face's chat templates. A case that raises has
"error": true instead of "rendered".
"""
import datetime, glob, json, os, sys
import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.datetime(2025, 1, 2, 3, 4, 5).strftime(f)


def render(source, args):
    try:
        return {"rendered": env.from_string(source).render(**args)}
    except Exception:
        return {"error": True}


ARGS = {
    "s": "Hello, World", "e": "", "u": "naïve 日本語", "n": 7, "neg": -7, "z": 0, "f": 1.5, "big": 12345678901234567890,
    "t": True, "no": False, "none_": None, "l": [3, 1, 2], "names": ["b", "A", "c", "a"], "empty": [], "d": {"b": 1, "a": [1, 2.0, None], "items": "x"},
    "tiny": 1e-7, "huge": 1e22, "quote": "it's \"q\"\n\t\\", "html": "<b>&'\"</b>", "lines": "one\ntwo\n\nthree", "sp": "  a  b c  ",
    "msgs": [{"role": "system", "content": "S"}, {"role": "user", "content": "U1"}, {"role": "assistant", "content": None, "n": 2}, {"role": "user", "content": "U2", "n": 1}],
    "nested": {"x": {"y": {"z": [1, {"k": "v"}]}}}, "think": "<think>\nr\n</think>\n\nanswer",
}

if __name__ == "__main__":
    if sys.argv[1] == "snippets":
        sys.stdout.write(json.dumps({"args": ARGS}, ensure_ascii=False) + "\n")
        for source in open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "snippets.txt"), encoding="utf-8", newline="").read().split("\n----\n"):
            sys.stdout.write(json.dumps({"source": source, **render(source, ARGS)}, ensure_ascii=False) + "\n")
    else:
        contexts = json.load(open(sys.argv[3]))
        for path in sorted(glob.glob(os.path.join(sys.argv[2], "*.jinja"))):
            for case, args in contexts.items():
                row = {"template": os.path.basename(path), "case": case, "args": args, **render(open(path).read(), args)}
                sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
