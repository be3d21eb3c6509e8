"""Parse AMD's instruction pseudocode into a syntax tree."""

from eagle3_tools.amdgpu.witness import syntax
from eagle3_tools.amdgpu.witness.bits import type_named
from eagle3_tools.amdgpu.witness.syntax import Body, Expression, Statement
from eagle3_tools.amdgpu.witness.tokens import (
    PseudocodeError,
    Token,
    cast_type,
    literal,
    tokens,
)

# C's precedence, lowest first; ** binds tighter than unary operators.
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!=", "<>"),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "|=", "&=", "^=")
_END = Token("end", "the end of the text")


def parse(text: str) -> Body:
    """Parse a text; raise PseudocodeError if it is not pseudocode."""
    parser = _Parser(tokens(text))
    body = parser.body()
    parser.expect(_END.text)
    return body


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self.found = [*found, _END]
        self.at = 0

    @property
    def token(self) -> Token:
        return self.found[self.at]

    def take(self) -> Token:
        token = self.token
        self.at += 1
        return token

    def accept(self, *texts: str) -> bool:
        if self.token.text in texts:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise PseudocodeError(f"expected {text}, got {self.token.text}")

    def name(self) -> str:
        if self.token.kind != "name":
            raise PseudocodeError(f"expected a name, got {self.token.text}")
        return self.take().text

    def body(self) -> Body:
        statements: list[Statement] = []
        while self.token.text not in ("endif", "endfor", "else", "elsif", ")", _END.text):
            statements.append(self.statement())
            # AMD omits the last ; of a block.
            self.accept(";")
        return tuple(statements)

    def statement(self) -> Statement:
        match self.token.text:
            case "if":
                return self.if_statement()
            case "for":
                return self.for_statement()
            case "declare":
                return self.declaration()
            case "return":
                self.take()
                return syntax.Return(self.expression())
            case "break":
                self.take()
                return syntax.Break()
            case _:
                return self.assignment()

    def if_statement(self) -> Statement:
        branches: list[tuple[Expression, Body]] = []
        while self.accept("if", "elsif"):
            condition = self.expression()
            self.expect("then")
            branches.append((condition, self.body()))
        otherwise = self.body() if self.accept("else") else ()
        self.expect("endif")
        return syntax.If(tuple(branches), otherwise)

    def for_statement(self) -> Statement:
        self.expect("for")
        variable = self.name()
        self.expect("in")
        first = self.expression()
        self.expect(":")
        last = self.expression()
        self.expect("do")
        body = self.body()
        self.expect("endfor")
        return syntax.For(variable, first, last, body)

    def declaration(self) -> Statement:
        self.expect("declare")
        name = self.name()
        self.expect(":")
        type_ = cast_type(self.take().text)
        length = None
        if self.accept("["):
            length = literal(self.take()).number
            self.expect("]")
        return syntax.Declare(name, type_, length)

    def assignment(self) -> Statement:
        target = self.postfix()
        if self.token.text not in _ASSIGNMENTS:
            if not isinstance(target, syntax.Call):
                raise PseudocodeError(f"expected an assignment, got {self.token.text}")
            return syntax.Perform(target)
        operator = self.take().text
        if isinstance(target, syntax.Name) and self.token.text == "lambda":
            return self.lambda_of(target.text)
        value = self.expression()
        if operator != "=":
            return syntax.Assign((target,), syntax.Binary(operator[:-1], target, value))
        targets = [target]
        while self.accept("="):
            targets.append(value)
            value = self.expression()
        return syntax.Assign(tuple(targets), value)

    def lambda_of(self, name: str) -> Statement:
        self.expect("lambda")
        self.expect("(")
        parameters = [self.name()]
        while self.accept(","):
            parameters.append(self.name())
        self.expect(")")
        self.expect("(")
        body = self.body()
        self.expect(")")
        return syntax.Lambda(name, tuple(parameters), body)

    def expression(self) -> Expression:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        yes = self.expression()
        self.expect(":")
        return syntax.Choice(condition, yes, self.expression())

    def binary(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.token.text in _LEVELS[level]:
            operator = self.take().text
            left = syntax.Binary(operator, left, self.binary(level + 1))
        return left

    def unary(self) -> Expression:
        if self.token.text in ("-", "+", "~", "!"):
            operator = self.take().text
            return syntax.Unary(operator, self.unary())
        base = self.postfix()
        return syntax.Binary("**", base, self.unary()) if self.accept("**") else base

    def postfix(self) -> Expression:
        inner = self.primary()
        while True:
            if self.accept("."):
                inner = self.member(inner)
            elif self.accept("["):
                inner = self.element(inner)
            else:
                return inner

    def member(self, inner: Expression) -> Expression:
        name = self.name()
        type_ = type_named(name)
        if type_ is not None:
            return syntax.Typed(inner, type_)
        if isinstance(inner, syntax.Name):
            return syntax.Name(f"{inner.text}.{name}")
        raise PseudocodeError(f"expected a type such as u32, got {name}")

    def element(self, inner: Expression) -> Expression:
        first = self.expression()
        if self.accept(":"):
            last = self.expression()
            self.expect("]")
            return syntax.Slice(inner, first, last)
        self.expect("]")
        return syntax.Index(inner, first)

    def primary(self) -> Expression:
        token = self.take()
        if token.kind == "cast":
            self.expect("(")
            return syntax.Cast(cast_type(token.text), self.list_until(")")[0])
        if token.kind in ("sized", "float", "int"):
            return syntax.Number(literal(token))
        if token.text == "(":
            return self.list_until(")")[0]
        if token.text == "{":
            return syntax.Concatenation(self.list_until("}"))
        if token.kind != "name":
            raise PseudocodeError(f"expected an expression, got {token.text}")
        if self.accept("("):
            return syntax.Call(token.text, self.list_until(")"))
        return syntax.Name(token.text)

    def list_until(self, end: str) -> tuple[Expression, ...]:
        if self.accept(end):
            return ()
        items = [self.expression()]
        while self.accept(","):
            items.append(self.expression())
        self.expect(end)
        return tuple(items)
