"""Lines of prose that are too long: in Markdown documents and in the comments of source files."""
import ast
import functools
import io
import re
import tokenize

COLUMNS_MAX = 100
LIST_MARKER = re.compile(r"\s*(?:[-*+]|\d+[.)]|:)\s+")
LINE_COMMENT = {".cc": "//", ".c": "//", ".h": "//", ".proto": "//", ".py": "#", ".sh": "#"}


def is_too_long(text):
    """A line with one word, such as a link, cannot be wrapped."""
    return len(text) > COLUMNS_MAX and len(text.split()) > 1


def long_lines_of_markdown(text):
    """[(number, line)] of prose; not of tables, code blocks and front matter."""
    found = []
    fenced = in_list = in_code = False
    after_blank = True
    for number, line in enumerate(text.splitlines(), 1):
        blank = not line.strip()
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not blank:
            if LIST_MARKER.match(line) and not (line.startswith("    ") and not in_list):
                in_list = True
            elif not line.startswith((" ", "\t")):
                in_list = False
            # Code is indented by four columns; in a list, by four more than the text of the item.
            indent = len(line) - len(line.lstrip())
            in_code = indent >= (6 if in_list else 4) and (after_blank or in_code)
            words = LIST_MARKER.sub("", line, count=1)
            is_table = line.lstrip().startswith("|")
            if not in_code and not is_table and len(words.split()) > 1 and is_too_long(line):
                found.append((number, line))
        after_blank = blank
    return found


def python_prose_lines(text):
    """Numbers of the lines of comments and docstrings."""
    numbers = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            numbers.add(token.start[0])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body
            if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                numbers.update(range(body[0].lineno, body[0].end_lineno + 1))
    return numbers


@functools.cache
def comment_lines(text, suffix):
    """[(number, line)] of comments. Suffixes without an entry, and none, are scripts."""
    lines = text.splitlines()
    if suffix == ".py":
        return [(number, lines[number - 1]) for number in sorted(python_prose_lines(text))]
    mark = LINE_COMMENT.get(suffix, "#")
    return [
        (number, line) for number, line in enumerate(lines, 1) if line.lstrip().startswith(mark)
    ]


def long_comment_lines(text, suffix):
    return [
        (number, line)
        for number, line in comment_lines(text, suffix)
        if is_too_long(line) and len(line.split()) > 2
    ]


def paths_in(line, folders):
    """Paths from the top of the repository that a comment names; not parts of longer paths."""
    names = "|".join(sorted(folders))
    found = re.findall(rf"(?<![\w/.$~-])((?:{names})/[\w*][\w./*-]*)", line)
    return [path.rstrip(".,:;") for path in found]
