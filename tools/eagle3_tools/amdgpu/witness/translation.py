"""Translate AMD's instruction pseudocode into Python, for the namespace of `pseudocode`.

AMD's texts have a statement or the head of a block on each line, and parentheses wherever the
precedence of C differs from Python's.
"""

import ast
import re
from functools import cache
from types import CodeType

from eagle3_tools.amdgpu.witness.bits import PseudocodeError

_LITERAL = re.compile(
    r"""(?<![\w.'])(?:
        (?P<width>\d+)'(?:(?P<cast>BF|[UIBF])\(|(?P<sized>0x[0-9a-fA-F]+|\d+)U?)
      | (?P<real>\d+\.\d+)(?P<single>F?)
      | (?P<whole>0x[0-9a-fA-F]+|\d+)(?P<suffix>U?L{0,2})
    )""",
    re.VERBOSE,
)
"""32'U( is a conversion, 16'0U u16, 1.0F f32, 1.0 f64, 4U u32, 4LL i64, 4 i32 and 0x4 b32."""
_SUFFIXES = {"": ("i", 32), "U": ("u", 32), "L": ("i", 64), "LL": ("i", 64), "ULL": ("u", 64)}
_NOTATION = (
    (r"//.*", ""),
    (r"(&&|\|\|)\s*\n", r"\1 "),
    (r"\bpass\b|\bin\b(?=\[| :)", r"\g<0>_"),  # Python's keywords.
    (r"CalcDsAddr\(.*?\)", "ADDR.u64"),  # The texts add the offset themselves.
    (r"Calc\w+\(.*?\)", "address.u64"),
    (r"VGPR\[([^\]]*)\]\[", r"VGPR[\1, "),
    (r"\b([A-Z_]+)\.([A-Z]+)\b", r"\1_\2"),  # Fields of registers, as in the state's names.
    (r"\b(INF|NAN)\.(\w+)", r"to_\2(\1)"),
    (r"([\w.]+) <> ([\w.]+)", r"((\1 < \2) | (\1 > \2))"),
    (r"!(?!=)", " not "),
    (r"&&", "and"),
    (r"\|\|", "or"),
    (r"\{", "join("),
    (r"\}", ")"),
)
_BLOCKS = (
    (r"if (.*) then", "if {}:", 0),
    (r"elsif (.*) then", "elif {}:", -1),
    (r"else", "else:", -1),
    (r"for (\w+) in (.*?) : (.*) do", "for {} in between({}, {}):", 0),
    (r"(\w+) = lambda\((.*)\) \(", "def {}({}):", 0),
)
"""Heads of blocks, their form in Python, and the change of the indentation before them."""
_ALLOWED = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.If, ast.For, ast.Break),
    *(ast.Assign, ast.AugAssign, ast.Expr, ast.Call, ast.Attribute, ast.Subscript, ast.Slice),
    *(ast.Name, ast.Constant, ast.Tuple, ast.IfExp, ast.BoolOp, ast.BinOp, ast.UnaryOp),
    *(ast.Compare, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context),
)
"""Syntax of translated texts: no import, class, lambda or name that begins with an underscore."""
_DECLARATION = re.compile(r"declare (\w+) : (\d+)'([UIBF])(?:\[(\d+)\])?")
_ASSIGNMENT = re.compile(r"(.+?) ([-+*/|&^]?=) (.+)")
_INNERMOST = re.compile(r"([(\[])([^()\[\]]*)([)\]])")


@cache
def program_of(text: str) -> CodeType:
    """Return the Python code of a text; raise PseudocodeError if it is not pseudocode."""
    lines, depth = list[str](), 0
    for pattern, form in _NOTATION:
        text = re.sub(pattern, form, text)
    for line in text.splitlines():
        line = line.strip().rstrip(";")
        if line.startswith("end"):
            depth -= 1 + line.count(")")  # The second end is that of a lambda.
        elif head := _head(line):
            depth += head[1]
            lines.append("    " * depth + head[0])
            depth += 1
        elif line:
            lines.append("    " * depth + _statement(line))
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError as error:
        raise PseudocodeError(f"expected pseudocode, got {error.text!r}") from error
    for node in ast.walk(tree):
        private = getattr(node, "id", getattr(node, "attr", "")).startswith("_")
        if private or not isinstance(node, _ALLOWED):
            raise PseudocodeError(f"expected pseudocode, got {ast.unparse(node)!r}")
    return compile(tree, "AMD's pseudocode", "exec")


def _head(line: str) -> tuple[str, int] | None:
    for pattern, form, change in _BLOCKS:
        if found := re.fullmatch(pattern, line):
            return form.format(*map(_expression, found.groups())), change
    return None


def _statement(line: str) -> str:
    if declared := _DECLARATION.fullmatch(line):
        name, width, kind, length = declared.groups()
        return f'{name} = declare("{name}", "{kind.lower()}{width}", {length or 0})'
    if line.startswith("return "):
        return f"return {_expression(line.removeprefix('return '))}"
    assigned = _ASSIGNMENT.fullmatch(line)
    if assigned is None:
        return _expression(line)
    target, value = _expression(assigned[1]), _expression(assigned[3])
    if target.startswith("join("):
        return f"{target}.write({value})"
    return f"{target} {assigned[2]} {value}"


def _expression(text: str) -> str:
    text, held = _LITERAL.sub(_literal, text), list[str]()

    def hold(found: re.Match[str]) -> str:
        inside = ",".join(map(_choice, found[2].split(",")))
        held.append(f"{found[1]}{inside}{found[3]}")
        return f"<{len(held) - 1}>"

    while _INNERMOST.search(text):
        text = _INNERMOST.sub(hold, text)
    text = _choice(text)
    while re.search(r"<\d+>", text):
        text = re.sub(r"<(\d+)>", lambda found: held[int(found[1])], text)
    return text.strip()


def _choice(text: str) -> str:
    """Translate condition ? yes : no."""
    condition, chooses, rest = text.partition("?")
    yes, _, no = rest.partition(":")
    return f"({yes}) if ({condition}) else ({_choice(no)})" if chooses else text


def _literal(found: re.Match[str]) -> str:
    if found["cast"]:
        return f"to_{found['cast'].lower()}{found['width']}("
    if found["sized"]:
        return f'number("u", {found["width"]}, {found["sized"]})'
    if found["real"]:
        return f'real("f{32 if found["single"] else 64}", "{found["real"]}")'
    kind, width = _SUFFIXES[found["suffix"]]
    bare = found["whole"].startswith("0x") and not found["suffix"]
    return f'number("{"b" if bare else kind}", {width}, {found["whole"]})'
