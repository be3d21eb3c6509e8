"""Run parsed pseudocode on the registers of one lane or of the scalar unit."""

from typing import Protocol

from eagle3_tools.amdgpu.witness import floats, operators, syntax
from eagle3_tools.amdgpu.witness.bits import (
    Bits,
    Type,
    as_type,
    bit_slice,
    concatenation,
    flag,
    integer,
    with_slice,
)
from eagle3_tools.amdgpu.witness.floats import F32
from eagle3_tools.amdgpu.witness.functions import convert, function_named
from eagle3_tools.amdgpu.witness.registers import CONSTANTS, Registers
from eagle3_tools.amdgpu.witness.syntax import Body, Expression
from eagle3_tools.amdgpu.witness.tokens import PseudocodeError

_FLOAT_SOURCES = ("S0", "S1", "S2", "D0", "SIMM32")
_BREAK = syntax.Break()


class TextCall(Protocol):
    """Evaluates another opcode's text, as v_max3_f32's calls v_max_f32."""

    def __call__(self, mnemonic: str, operands: tuple[Bits, ...]) -> Bits: ...


class Evaluator:
    """One run of one text.

    `denormal_inputs` and `denormal_outputs` keep denormals of f32 sources and results; otherwise
    they are flushed to zero.
    """

    def __init__(
        self,
        registers: Registers,
        call_text: TextCall,
        *,
        denormal_inputs: bool,
        denormal_outputs: bool,
    ) -> None:
        self.registers = registers
        self.call_text = call_text
        self.denormal_inputs = denormal_inputs
        self.denormal_outputs = denormal_outputs
        self.lambdas: dict[str, syntax.Lambda] = {}

    def run(self, body: Body) -> Bits | syntax.Break | None:
        """Run statements; return the value of a return statement, a break, or None at the end."""
        for statement in body:
            ended = self.statement(statement)
            if ended is not None:
                return ended
        return None

    def statement(self, statement: syntax.Statement) -> Bits | syntax.Break | None:
        match statement:
            case syntax.Assign(targets, value):
                result = self.value(value)
                for target in reversed(targets):
                    self.assign(target, result)
            case syntax.Declare(name, type_, length):
                self.registers.declare(name, type_, length)
            case syntax.If(branches, otherwise):
                for condition, body in branches:
                    if self.value(condition):
                        return self.run(body)
                return self.run(otherwise)
            case syntax.For():
                return self.loop(statement)
            case syntax.Lambda(name):
                self.lambdas[name] = statement
            case syntax.Return(value):
                return self.value(value)
            case syntax.Break():
                return _BREAK
            case syntax.Perform(syntax.Call("nop")):
                pass
            case syntax.Perform(call):
                self.value(call)
        return None

    def loop(self, loop: syntax.For) -> Bits | syntax.Break | None:
        first, last = self.number(loop.first), self.number(loop.last)
        for counter in range(first, last + 1):
            self.registers.names[loop.variable] = integer("i", 32, counter)
            ended = self.run(loop.body)
            if isinstance(ended, syntax.Break):
                return None
            if ended is not None:
                return ended
        return None

    def number(self, expression: Expression) -> int:
        return self.value(expression).number

    def value(self, expression: Expression) -> Bits:
        match expression:
            case syntax.Number(value):
                return value
            case syntax.Name(name):
                return self.registers.read(name)
            case syntax.Unary(operator, operand):
                return operators.unary(operator, self.value(operand))
            case syntax.Binary(operator, left, right):
                return self.binary(operator, left, right)
            case syntax.Choice(condition, yes, no):
                return self.value(yes if self.value(condition) else no)
            case syntax.Typed(inner, type_):
                return self.typed(inner, type_)
            case syntax.Slice(inner, first, last):
                return bit_slice(self.value(inner), self.number(first), self.number(last))
            case syntax.Index(inner, index):
                return self.element(inner, index)
            case syntax.Cast(type_, inner):
                return convert(self.value(inner), type_)
            case syntax.Concatenation(parts):
                return concatenation([self.value(part) for part in parts])
            case syntax.Call(function, arguments):
                return self.call(function, arguments)

    def binary(self, operator: str, left: Expression, right: Expression) -> Bits:
        first = self.value(left)
        if operator == "&&":
            return flag(bool(first) and bool(self.value(right)))
        if operator == "||":
            return flag(bool(first) or bool(self.value(right)))
        return self.result(operators.binary(operator, first, self.value(right)))

    def typed(self, inner: Expression, type_: Type) -> Bits:
        match inner:
            case syntax.Index(syntax.Name("MEM"), address):
                return self.registers.load(self.number(address), type_)
            case syntax.Name(name) if name in CONSTANTS:
                return convert(CONSTANTS[name], type_)
        value = as_type(self.value(inner), type_)
        flushed = type_ == F32 and not self.denormal_inputs and _root(inner) in _FLOAT_SOURCES
        return _flushed(value) if flushed else value

    def element(self, inner: Expression, index: Expression) -> Bits:
        at = self.number(index)
        match inner:
            case syntax.Index(syntax.Name("VGPR"), lane):
                return self.registers.element("VGPR", (self.number(lane), at))
            case syntax.Name("HW_REGISTERS"):
                return self.registers.element("HW_REGISTERS", at)
            case syntax.Name(name) if name in self.registers.arrays:
                return self.registers.arrays[name][at]
        return bit_slice(self.value(inner), at, at)

    def call(self, name: str, arguments: tuple[Expression, ...]) -> Bits:
        if name == "CalcDsAddr":  # The texts add the offset themselves.
            return as_type(self.registers.read("ADDR"), Type("u", 64))
        if name.startswith("Calc"):
            return as_type(self.registers.read("address"), Type("u", 64))
        if name == "HwRegWriteMask":  # A wave may write all bits of its registers.
            return integer("i", 32, -1)
        operands = tuple(self.value(argument) for argument in arguments)
        if name in self.lambdas:
            return self.call_lambda(self.lambdas[name], operands)
        function = function_named(name)
        if function is not None:
            return self.result(function(*operands))
        return self.call_text(name, operands)

    def call_lambda(self, function: syntax.Lambda, operands: tuple[Bits, ...]) -> Bits:
        outer = dict(self.registers.names)
        self.registers.names.update(zip(function.parameters, operands, strict=True))
        result = self.run(function.body)
        self.registers.names = outer
        if not isinstance(result, Bits):
            raise PseudocodeError(f"expected {function.name} to return a value, got none")
        return result

    def result(self, value: Bits) -> Bits:
        """Flush a denormal f32 result if the mode says so."""
        return _flushed(value) if value.type == F32 and not self.denormal_outputs else value

    def assign(self, target: Expression, value: Bits) -> None:
        match target:
            case syntax.Name(name):
                type_ = self.registers.declared_type(name)
                self.registers.names[name] = _stored_as(value, type_) if type_ else value
            case syntax.Typed(syntax.Index(syntax.Name("MEM"), address), type_):
                self.registers.save(self.number(address), _stored_as(value, type_))
            case syntax.Typed(inner, type_):
                part = _stored_as(value, type_)
                self.assign(inner, with_slice(self.old(inner), type_.width - 1, 0, part))
            case syntax.Slice(inner, first, last):
                new = with_slice(self.old(inner), self.number(first), self.number(last), value)
                self.assign(inner, new)
            case syntax.Index(inner, index):
                self.assign_element(inner, self.number(index), value)
            case syntax.Concatenation(parts):
                self.assign_parts(parts, value)
            case _:
                raise PseudocodeError(f"expected something that can be assigned, got {target}")

    def assign_element(self, inner: Expression, at: int, value: Bits) -> None:
        match inner:
            case syntax.Index(syntax.Name("VGPR"), lane):
                self.registers.set_element("VGPR", (self.number(lane), at), value)
            case syntax.Name("HW_REGISTERS"):
                self.registers.set_element("HW_REGISTERS", at, value)
            case syntax.Name(name) if name in self.registers.arrays:
                array = self.registers.arrays[name]
                array[at] = _stored_as(value, array[at].type)
            case _:
                self.assign(inner, with_slice(self.old(inner), at, at, value))

    def assign_parts(self, parts: tuple[Expression, ...], value: Bits) -> None:
        at = 0
        for part in reversed(parts):
            if not isinstance(part, syntax.Typed):
                raise PseudocodeError(f"expected parts with a type, got {part}")
            width = part.type.width
            self.assign(part, bit_slice(value, at + width - 1, at))
            at += width

    def old(self, target: Expression) -> Bits:
        """Return the old value of a target that is written in part."""
        match target:
            case syntax.Name(name):
                return self.registers.read_to_update(name)
            case syntax.Typed(inner, type_):
                return as_type(self.old(inner), type_)
            case syntax.Slice(inner, first, last):
                return bit_slice(self.old(inner), self.number(first), self.number(last))
        return self.value(target)


def _root(expression: Expression) -> str:
    while isinstance(expression, syntax.Typed | syntax.Slice | syntax.Index):
        expression = expression.inner
    return expression.text if isinstance(expression, syntax.Name) else ""


def _flushed(value: Bits) -> Bits:
    return floats.zero(F32, floats.sign(value)) if floats.is_denormal(value) else value


def _stored_as(value: Bits, type_: Type) -> Bits:
    """Convert `value` for an assignment, within floats or within integers.

    Between floats and integers the bits are copied without conversion, so widths must agree.
    """
    if value.type.is_float == type_.is_float:
        return convert(value, type_)
    if value.type.width != type_.width and value.type.kind != "b":
        raise PseudocodeError(f"expected a value of {type_.width} bits, got {value.type}")
    return as_type(value, type_)
