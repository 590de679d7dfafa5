#!/usr/bin/env python3
"""HellaSwag's validation set as an evaluation file: dev/data/hellaswag/hellaswag_val.bin, 10,042 questions, 3.6 MB.

    python3 dev/data/hellaswag.py            # fetches 12 MB, 2 s; the trainers read it with -h 1

Each question is a context and four endings, one of them right; the model's answer is the ending of least mean loss.
"""

import json
import os

from data_common import (
    HERE,
    Parser,
    add_mirror_option,
    fail,
    make_directory,
    obtain,
    prepare_gpt2,
    run,
    write_evaluation_file,
)

URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
SIZE = 12246618
SHA256 = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"


def encode_question(line, encoding):
    """One line of the raw file as tokens. An ending continues the context, so a space comes before it."""
    question = json.loads(line)
    return {
        "label": question["label"],
        "ctx_tokens": encoding.encode_ordinary(question["ctx"]),
        "ending_tokens": [encoding.encode_ordinary(" " + ending) for ending in question["endings"]],
    }


def read_questions(path, encoding):
    questions = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                questions.append(encode_question(line, encoding))
            except (KeyError, TypeError, ValueError) as error:
                fail(f"{path}, line {number} is not a HellaSwag question: {error!r}")
    return questions


def main():
    parser = Parser(__doc__)
    parser.add_argument("--output", metavar="DIR", help="default: dev/data/hellaswag")
    add_mirror_option(parser)
    args = parser.parse_args()
    folder = args.output or os.path.join(HERE, "hellaswag")
    make_directory(folder, alone=True)
    path = obtain(URL, os.path.join(folder, "hellaswag_val.jsonl"), args.mirror, size=SIZE, sha256=SHA256)
    questions = read_questions(path, prepare_gpt2(args.mirror, args.output))
    write_evaluation_file(os.path.join(folder, "hellaswag_val.bin"), questions)


if __name__ == "__main__":
    run(main)
