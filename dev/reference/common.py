"""What this folder takes from dev/data (one-line errors, the argument parser, checked files); --device."""

import argparse
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from data_common import (
    HEADER_BYTES,
    CheckedFile,
    OutputFile,
    Parser,
    fail,
    make_directory,
    positive_int,
    read_token_file,
    run,
    verify,
)

__all__ = [
    "HEADER_BYTES",
    "CheckedFile",
    "OutputFile",
    "Parser",
    "add_device_option",
    "fail",
    "make_directory",
    "positive_int",
    "read_token_file",
    "run",
    "verify",
]


def device(text):
    """An argparse type: a PyTorch device that this machine has."""
    import torch

    try:
        torch.empty(1, device=text)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"'{text}' is no device of this machine ({reason})") from None
    return text


def add_device_option(parser):
    import torch

    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device, default=default, help="default: cuda where there is one, else cpu")
