# ruff: noqa: E741 (l and m are FlashAttention's names)
"""Causal self-attention for PyTorch by libattention.so, forward and backward: the kernels that flashgpt trains with.

    from flashgpt_attention import attention

    qkv = self.c_attn(x).view(B, T, 3, NH, HS)
    y = attention(qkv).view(B, T, C)

Needs PyTorch 2.4 or newer and an NVIDIA GPU of compute capability 8.0 or newer. Kernels run on PyTorch's current stream
and in memory of its allocator. The same inputs give the same bits. README.md says how to install it, docs/pytorch.md
how to put it into a model.
"""

import ctypes
import functools
import os
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F

if not hasattr(torch.library, "custom_op"):
    old = f"flashgpt_attention needs PyTorch 2.4 or newer; this is {torch.__version__}"
    raise ImportError(old, name="torch.library.custom_op")

__all__ = ["attention"]

HEAD_SIZES = (32, 64, 96, 128)
DTYPES = (torch.bfloat16, torch.float16)
LIBRARY = "libattention.so"
VARIABLE = "FLASHGPT_ATTENTION_LIBRARY"

_warn_once = functools.cache(functools.partial(warnings.warn, stacklevel=2))


# ----------------------------------------------------------------------------
# The library: dev/cuda/libattention.h


@functools.cache
def _library():
    """libattention.so as $FLASHGPT_ATTENTION_LIBRARY names it, or beside this file, or of the checkout around it."""
    here, named = Path(__file__).resolve().parent, os.environ.get(VARIABLE)
    paths = [Path(named)] if named else [here / LIBRARY, here.parent / LIBRARY]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        wanted = f"{VARIABLE}={named}: no such file" if named else f"no {LIBRARY} in {here} or {here.parent}"
        raise RuntimeError(f"{wanted}; pip install ./python builds it, or make {LIBRARY}, and {VARIABLE} names it")
    try:
        library = ctypes.CDLL(str(path.resolve()))  # of a bare name it would search the system's folders
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        library.attention_scratch_bytes.restype = ctypes.c_size_t
        library.attention_scratch_bytes.argtypes = [integer] * 4
        library.attention_forward.argtypes = [pointer] * 4 + [integer] * 4 + [pointer]
        library.attention_backward.argtypes = [pointer] * 7 + [integer] * 4 + [pointer]
        library.attention_forward_documents.argtypes = [pointer] * 5 + [integer] * 4 + [pointer]
        library.attention_backward_documents.argtypes = [pointer] * 8 + [integer] * 4 + [pointer]
        library.attention_error.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"cannot use {path}: {error}") from None
    return library


def _failed(function, shape):
    sizes = ", ".join(f"{name} {size}" for name, size in zip(("B", "T", "NH", "HS"), shape))
    return RuntimeError(f"{function} ({sizes}): {_library().attention_error().decode(errors='replace')}")


def _launch(function, tensors, shape):
    """Launches the kernels on the current stream of the current device, which is that of the tensors."""
    stream = torch.cuda.current_stream(tensors[0].device).cuda_stream
    if getattr(_library(), function)(*(x.data_ptr() for x in tensors), *shape, stream) != 0:
        raise _failed(function, shape)


# ----------------------------------------------------------------------------
# Tensors as the library takes them


def _aligned(x):
    """x in bf16, contiguous and aligned to 16 bytes: itself, or a copy."""
    x = x.to(torch.bfloat16).contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _packed(q, k, v):
    """qkv (B,T,3,NH,HS): q if k is None, else the tensor of which q, k and v (B,T,NH,HS) are views, or a copy."""
    if k is None:
        return _aligned(q)
    B, T, NH, HS = q.shape
    C = NH * HS
    strides = (T * 3 * C, 3 * C, HS, 1)
    views = all(
        x.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
        and x.storage_offset() == q.storage_offset() + which * C
        and all(n == 1 or here == there for n, here, there in zip(x.shape, x.stride(), strides))
        for which, x in enumerate((q, k, v))
    )
    if views:
        return _aligned(q.as_strided((B, T, 3, NH, HS), (T * 3 * C, 3 * C, C, HS, 1)))
    _warn_once("q, k and v are not views of one tensor (B,T,3,NH,HS): each forward and backward copies them into one")
    return _aligned(torch.stack((q, k, v), 2))


def _shape(q, k):
    """B, T, NH, HS"""
    B, T, NH, HS = q.shape if k is not None else (*q.shape[:2], *q.shape[3:])
    return B, T, NH, HS


# ----------------------------------------------------------------------------
# The operators. q alone is qkv (B,T,3,NH,HS); starts is (B,T) int32, or None: rows are one document; out is (B,T,NH,HS)
# in q's dtype; l and m are (B,NH,T) fp32.


def _outputs(q, k):
    B, T, NH, HS = _shape(q, k)
    l, m = (q.new_empty(B, NH, T, dtype=torch.float32) for _ in range(2))
    return q.new_empty(B, T, NH, HS), l, m


@torch.library.custom_op(
    "flashgpt::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor? k, Tensor? v, Tensor? starts) -> (Tensor, Tensor, Tensor)",
)
def _forward(q, k, v, starts):
    if q.dtype == torch.float16:
        _warn_once("float16 is computed in bfloat16, and rounded like it")
    with torch.cuda.device_of(q):
        qkv = _packed(q, k, v)
        out, l, m = _outputs(qkv, None)
        if starts is None:
            _launch("attention_forward", [out, l, m, qkv], _shape(q, k))
        else:
            _launch("attention_forward_documents", [out, l, m, qkv, starts.contiguous()], _shape(q, k))
        return out.to(q.dtype), l, m


@_forward.register_fake
def _(q, k, v, starts):
    return _outputs(q, k)


@torch.library.custom_op(
    "flashgpt::attention_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor q, Tensor? k, Tensor? v, Tensor? starts, Tensor out, Tensor l, Tensor m) -> Tensor",
)
def _backward(dout, q, k, v, starts, out, l, m):
    """dqkv (B,T,3,NH,HS)"""
    shape = _shape(q, k)
    with torch.cuda.device_of(q):
        qkv = _packed(q, k, v)
        dqkv = torch.empty_like(qkv)
        scratch_bytes = _library().attention_scratch_bytes(*shape)
        if scratch_bytes == 0:
            raise _failed("attention_scratch_bytes", shape)
        scratch = qkv.new_empty(scratch_bytes, dtype=torch.uint8)
        tensors = [dqkv, _aligned(dout), qkv, _aligned(out), l.contiguous(), m.contiguous()]
        if starts is None:
            _launch("attention_backward", [*tensors, scratch], shape)
        else:
            _launch("attention_backward_documents", [*tensors, starts.contiguous(), scratch], shape)
        return dqkv.to(q.dtype)


@_backward.register_fake
def _(dout, q, k, v, starts, out, l, m):
    B, T, NH, HS = _shape(q, k)
    return q.new_empty(B, T, 3, NH, HS)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dout, dl, dm):
    q, k, v, starts, out, l, m = ctx.saved_tensors
    dqkv = _backward(dout, q, k, v, starts, out, l, m)
    return (dqkv, None, None, None) if k is None else (*dqkv.unbind(2), None)


_forward.register_autograd(_differentiate, setup_context=_save)


# ----------------------------------------------------------------------------
# The function


@torch.compiler.assume_constant_result
def _unserved_device(device):
    """Why the library does not serve a device; empty where it does."""
    if device.type != "cuda" or torch.version.hip:
        return f"tensors on {device}: they must be on an NVIDIA GPU"
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"compute capability {major}.{minor}: it must be 8.0 or newer"


def _unserved(device, dtype, HS):
    """Why the library does not serve such tensors; empty where it does."""
    if dtype not in DTYPES:
        return f"{dtype}: must be torch.bfloat16 or torch.float16"
    if HS not in HEAD_SIZES:
        return f"head size {HS}: must be 32, 64, 96 or 128"
    return _unserved_device(device)


def _check(q, k, v, starts):
    """Raises ValueError if the arguments have no meaning, for the library or any other."""
    if (k is None) != (v is None):
        raise ValueError("attention takes qkv alone, or q, k and v")
    for name, x in (("q" if k is not None else "qkv", q), ("k", k), ("v", v)):
        if x is not None and not (isinstance(x, torch.Tensor) and x.is_floating_point()):
            raise ValueError(f"{name} is {getattr(x, 'dtype', type(x).__name__)}: must be a tensor of floating point")
    shape = tuple(q.shape)
    if k is None and (len(shape) != 5 or shape[2] != 3):
        raise ValueError(f"qkv has shape {shape}: must be (B,T,3,NH,HS)")
    if k is not None and len(shape) != 4:
        raise ValueError(f"q has shape {shape}: must be (B,T,NH,HS)")
    for name, x in (("k", k), ("v", v)) if k is not None else ():
        if tuple(x.shape) != shape or x.dtype != q.dtype or x.device != q.device:
            here, there = (f"{tuple(y.shape)} {y.dtype} on {y.device}" for y in (x, q))
            raise ValueError(f"{name} is {here}, and q is {there}: they must be alike")
    if 0 in shape:
        raise ValueError(f"shape {shape}: every size must be at least 1")
    if starts is not None and (tuple(starts.shape) != shape[:2] or starts.dtype != torch.int32):
        raise ValueError(f"starts is {tuple(starts.shape)} {starts.dtype}: must be {shape[:2]} torch.int32")
    if starts is not None and starts.device != q.device:
        raise ValueError(f"starts is on {starts.device}, and q is on {q.device}: they must be on one device")


def _sdpa(q, k, v, starts):
    qkv = q.unbind(2) if k is None else (q, k, v)
    q, k, v = (x.transpose(1, 2) for x in qkv)
    if starts is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous()
    key = torch.arange(q.shape[2], device=q.device)
    mask = (key <= key[:, None]) & (key >= starts[:, None, :, None])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).contiguous()


def attention(q, k=None, v=None, *, starts=None, fallback=False):
    """Causal self-attention, softmax(q k^T / sqrt(HS)) v over keys j <= i, of qkv (B,T,3,NH,HS) in bf16 or fp16.

    attention(qkv), or attention(q, k, v) with each (B,T,NH,HS): views of such a tensor, or they are copied into one.
    With starts (B,T) int32, keys are those of starts[b,i] <= j <= i: where the document of token i begins, which is not
    before that of token i - 1, nor behind i. Other numbers go unnoticed. Returns (B,T,NH,HS), contiguous. Where the
    library does not serve the device, the dtype or the head size, the call uses scaled_dot_product_attention with
    fallback=True and otherwise raises ValueError, as it does for shapes that do not fit. RuntimeError has what the
    library reports, or says that there is none.
    """
    _check(q, k, v, starts)
    device = q.device
    if device.type != "meta" and torch.is_autocast_enabled(device.type):  # PyTorch has no autocast for meta
        dtype = torch.get_autocast_dtype(device.type)
        q, k, v = (x if x is None else x.to(dtype) for x in (q, k, v))
    why = _unserved(device, q.dtype, q.shape[-1])
    if why and fallback:
        return _sdpa(q, k, v, starts)
    if why:
        raise ValueError(f"{why}; fallback=True would use scaled_dot_product_attention")
    return _forward(q, k, v, starts)[0]
