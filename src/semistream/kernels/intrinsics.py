"""Loads and stores at a raw address, and calls into the C library: what `raw` names for kernels.

Numba arrays need one dtype and one stride; a page of R or a packed row has many. These intrinsics compile to
the single machine instruction, unaligned, and are the only place where addresses are dereferenced. They are imported
when a kernel is compiled, and not where compiled ones are found.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _loader(bits: int, result: Any, signed: bool) -> Any:
    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            value = builder.load(builder.inttoptr(args[0], kind.as_pointer()))
            value.align = 1
            wide = ir.IntType(result.bitwidth)
            if bits == result.bitwidth:
                return value
            return builder.sext(value, wide) if signed else builder.zext(value, wide)

        return result(types.int64), codegen

    return load


def _storer(bits: int, accepted: Any) -> Any:
    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            narrow = args[1] if bits == accepted.bitwidth else builder.trunc(args[1], kind)
            instruction = builder.store(narrow, builder.inttoptr(args[0], kind.as_pointer()))
            instruction.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, accepted), codegen

    return store


load_u8 = _loader(8, types.int64, signed=False)
load_i8 = _loader(8, types.int64, signed=True)
load_u16 = _loader(16, types.int64, signed=False)
load_i16 = _loader(16, types.int64, signed=True)
load_u32 = _loader(32, types.int64, signed=False)
load_i32 = _loader(32, types.int64, signed=True)
load_i64 = _loader(64, types.int64, signed=True)
load_u64 = _loader(64, types.uint64, signed=False)
store_u8 = _storer(8, types.int64)
store_i16 = _storer(16, types.int64)
store_i32 = _storer(32, types.int64)
store_i64 = _storer(64, types.int64)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Has the processor fetch the cache line at an address; nobody waits for it, and any address will do."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To be read, into all levels, as data.
        builder.call(function, [builder.inttoptr(args[0], pointer), i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def native_pread(typingctx: Any, fd: Any, address: Any, count: Any, offset: Any) -> Any:
    """libc pread(2): lets a kernel read many page runs without the GIL or a Python call for each."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64, i32 = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(i64, [i32, ir.IntType(8).as_pointer(), i64, i64])
        function = cgutils.get_or_insert_function(builder.module, kind, "pread")
        pointer = builder.inttoptr(args[1], ir.IntType(8).as_pointer())
        return builder.call(function, [builder.trunc(args[0], i32), pointer, args[2], args[3]])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def native_read(typingctx: Any, fd: Any, address: Any, count: Any) -> Any:
    """libc read(2): lets a thread wait for work at a pipe without the GIL."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _transfer(builder, "read", args)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def native_write(typingctx: Any, fd: Any, address: Any, count: Any) -> Any:
    """libc write(2): lets a thread say that its work is done without the GIL."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _transfer(builder, "write", args)

    return types.int64(types.int64, types.int64, types.int64), codegen


def _transfer(builder: Any, name: str, args: Any) -> Any:
    """A call of read(2) or write(2)."""
    i64, i32 = ir.IntType(64), ir.IntType(32)
    kind = ir.FunctionType(i64, [i32, ir.IntType(8).as_pointer(), i64])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    pointer = builder.inttoptr(args[1], ir.IntType(8).as_pointer())
    return builder.call(function, [builder.trunc(args[0], i32), pointer, args[2]])


@intrinsic
def native_madvise(typingctx: Any, address: Any, count: Any, advice: Any) -> Any:
    """libc madvise(2): 0, or -1 for an error."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64, i32 = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(i32, [ir.IntType(8).as_pointer(), i64, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "madvise")
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.sext(builder.call(function, [pointer, args[1], builder.trunc(args[2], i32)]), i64)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def native_mincore(typingctx: Any, address: Any, count: Any, flags: Any) -> Any:
    """libc mincore(2): writes a byte per memory page to address `flags`, odd if it is in memory; 0, or -1."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.IntType(32), [pointer, i64, pointer])
        function = cgutils.get_or_insert_function(builder.module, kind, "mincore")
        memory, found = (builder.inttoptr(args[i], pointer) for i in (0, 2))
        return builder.sext(builder.call(function, [memory, args[1], found]), i64)

    return types.int64(types.int64, types.int64, types.int64), codegen
